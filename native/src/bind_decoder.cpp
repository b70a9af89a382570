// Python surface of the decoder and the sampler. Arrays are flat; every index is checked before it is used.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bind_attention.h"
#include "bindings.h"
#include "decoder.h"
#include "drafted_steps.h"
#include "following_steps.h"
#include "new_array.h"
#include "sampling_step.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lpx {
namespace {

template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Sums = nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using MaskRows = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> span_of(const Array<T>& array) {
    return {array.data(), array.size()};
}

SamplingInput sampling_input(const Array<int32_t>& sampling, const Array<int32_t>& drafted,
                             const Array<int64_t>& positions, const Array<int32_t>& targets, const Array<int32_t>& top,
                             const Array<float>& numbers, const Array<int32_t>& top_k, const Array<uint64_t>& seeds,
                             const Array<int32_t>& ids, const Array<int32_t>& ids_begin,
                             const Array<float>& bias_values, const Array<int32_t>& mask, const MaskRows& masks) {
    return {.sampling = span_of(sampling),
            .drafted = span_of(drafted),
            .positions = span_of(positions),
            .targets = span_of(targets),
            .top = span_of(top),
            .mask = span_of(mask),
            .numbers = span_of(numbers),
            .top_k = span_of(top_k),
            .seeds = span_of(seeds),
            .ids = span_of(ids),
            .ids_begin = span_of(ids_begin),
            .bias_values = span_of(bias_values),
            .masks = {masks.data(), masks.size()},
            .mask_words = static_cast<int64_t>(masks.shape(1))};
}

template <class T>
nb::object array_of(const std::vector<T>& values) {
    return new_array<T>({values.size()}, [&](T* out) { std::copy(values.begin(), values.end(), out); });
}

// sampled ids, finite flags, scored ids, log-probabilities, ranks, and the likeliest ids with theirs.
nb::tuple results_of(const SamplingSink& sink, const std::vector<int32_t>& sampled) {
    const auto column = [](const std::vector<TokenScore>& scores, auto shape, auto member) {
        using T = std::remove_cvref_t<decltype(scores[0].*member)>;
        return new_array<T>(shape, [&](T* out) {
            for (size_t i = 0; i < scores.size(); ++i) out[i] = scores[i].*member;
        });
    };
    const std::initializer_list<size_t> rows = {sink.scores.size()};
    const std::initializer_list<size_t> top = {sink.scores.size(), static_cast<size_t>(sink.most_top)};
    return nb::make_tuple(array_of(sampled), array_of(sink.finite), column(sink.scores, rows, &TokenScore::id),
                          column(sink.scores, rows, &TokenScore::logprob), column(sink.scores, rows, &TokenScore::rank),
                          column(sink.top, top, &TokenScore::id), column(sink.top, top, &TokenScore::logprob));
}

// Copies logits out instead of sampling.
class CopySink final : public LogitSink {
  public:
    CopySink(float* out, int64_t vocab) : out_(out), vocab_(vocab) {}
    void take(int64_t index, std::span<float> logits, int) noexcept override {
        std::memcpy(out_ + index * vocab_, logits.data(), logits.size_bytes());
    }

  private:
    float* out_;
    int64_t vocab_;
};

// name, type, rows, cols, data, row map, bits to quantize to, whether the data is a mapped file
using BoundWeight =
    std::tuple<std::string, std::string, int64_t, int64_t, Array<uint8_t>, std::optional<Array<int32_t>>, int, bool>;

// Drafts, and what became of them in a call.
struct BoundDrafting {
    Drafting drafting;
    std::vector<DraftedStep> steps;

    std::vector<std::tuple<int64_t, int64_t, bool, double>> listed() const {
        std::vector<std::tuple<int64_t, int64_t, bool, double>> list;
        for (const DraftedStep& step : steps) list.emplace_back(step.drafted, step.accepted, step.found, step.ms);
        return list;
    }
};

// A decoder with what sampling needs.
struct BoundDecoder {
    Decoder decoder;
    std::vector<SamplerScratch> scratch;

    BoundDecoder(const DecoderConfig& config, int threads, const std::string& isa, int64_t max_rows,
                 int64_t max_model_len, int64_t kv_blocks, const std::string& key_type, const std::string& value_type)
        : decoder(config,
                  {.max_rows = max_rows,
                   .max_model_len = max_model_len,
                   .kv_blocks = kv_blocks,
                   .kv_types = kv_types(key_type, value_type)},
                  threads, isa.c_str()) {
        for (int t = 0; t < threads; ++t) scratch.emplace_back(config.vocab_size);
    }

    // One call packs many tensors, so that the interpreter lock stays free meanwhile.
    void set_weights(const std::vector<BoundWeight>& weights) {
        std::vector<NamedSource> tensors;
        for (const auto& [name, type, rows, cols, data, row_map, quantize_bits, mapped] : weights)
            tensors.push_back({name,
                               {.type = weight_type_from_name(type),
                                .rows = rows,
                                .cols = cols,
                                .data = {reinterpret_cast<const std::byte*>(data.data()), data.size()},
                                .row_map = row_map ? span_of(*row_map) : std::span<const int32_t>(),
                                .quantize_bits = quantize_bits,
                                .mapped = mapped}});
        const nb::gil_scoped_release unlocked;
        decoder.weights().set(tensors, &decoder.pool());
    }

    // With `more_steps`, one decode row a sequence: each sampled id is fed into a next step, until all are done, an id
    // of `stop_ids` is sampled or logits are not finite. The first result then has the ids of every step run.
    // With `drafting`, which changes, tokens are drafted and verified on the way; see drafted_steps.h.
    // `pool_sums` [pools, hidden size] is changed in place.
    nb::tuple step(Array<int32_t> token_ids, Array<int32_t> row_begin, Array<int32_t> start_position,
                   Array<int32_t> block_ids, Array<int32_t> table_begin, Array<int32_t> logit_rows,
                   Array<int32_t> sampling, Array<int32_t> drafted, Array<int64_t> positions, Array<int32_t> targets,
                   Array<int32_t> top, Array<float> numbers, Array<int32_t> top_k, Array<uint64_t> seeds,
                   Array<int32_t> ids, Array<int32_t> ids_begin, Array<float> bias_values, Array<int32_t> mask,
                   MaskRows masks, int more_steps, Array<int32_t> stop_ids, Array<int32_t> stop_begin,
                   BoundDrafting* drafting, Array<int32_t> pool_begin, Array<int32_t> pool_end, Sums pool_sums) {
        if (pool_sums.shape(0) != pool_begin.size() ||
            (pool_begin.size() > 0 && pool_sums.shape(1) != static_cast<size_t>(decoder.config().hidden_size)))
            throw std::invalid_argument("pool sums do not have one row of the hidden size per pool");
        StepInput step = step_input(token_ids, row_begin, start_position, block_ids, table_begin, logit_rows);
        step.pool_begin = span_of(pool_begin);
        step.pool_end = span_of(pool_end);
        step.pool_sums = pool_sums.data();
        const SamplingInput input = sampling_input(sampling, drafted, positions, targets, top, numbers, top_k, seeds,
                                                   ids, ids_begin, bias_values, mask, masks);
        check(input, std::ssize(step.logit_rows), decoder.config().vocab_size);
        const FollowingSteps following{
            .count = more_steps, .stop_ids = span_of(stop_ids), .stop_begin = span_of(stop_begin)};
        check(following, step, input, decoder.limits().max_model_len);
        if (drafting != nullptr) check(drafting->drafting, step, decoder.limits().max_rows);
        std::vector<int32_t> sampled;
        std::unique_ptr<SamplingSink> sink;
        {
            const nb::gil_scoped_release unlocked;
            sink = drafting == nullptr ? run_steps(decoder, step, input, following, scratch, sampled)
                                       : run_drafted_steps(decoder, step, input, following, drafting->drafting, scratch,
                                                           sampled, drafting->steps);
        }
        return results_of(*sink, sampled);
    }

    nb::object logits(Array<int32_t> token_ids, Array<int32_t> row_begin, Array<int32_t> start_position,
                      Array<int32_t> block_ids, Array<int32_t> table_begin, Array<int32_t> logit_rows) {
        const StepInput step = step_input(token_ids, row_begin, start_position, block_ids, table_begin, logit_rows);
        const auto vocab = static_cast<size_t>(decoder.config().vocab_size);
        return new_array<float>({step.logit_rows.size(), vocab}, [&](float* out) {
            CopySink sink(out, decoder.config().vocab_size);
            const nb::gil_scoped_release unlocked;
            decoder.step(step, sink);
        });
    }

    // Keys and values of one block, as they are kept: float32 [tokens of a block, head_dim] each.
    nb::tuple kv_block(int64_t block, int64_t layer, int64_t kv_head) const {
        const DecoderConfig& c = decoder.config();
        const KvCache* const cache = decoder.kv_cache();
        if (cache == nullptr || block < 0 || block >= cache->blocks() || layer < 0 || layer >= std::ssize(c.layers) ||
            kv_head < 0 || kv_head >= c.num_kv_heads)
            throw std::invalid_argument("no such KV block, layer or KV head");
        return stored_block(*cache, block, layer, kv_head);
    }

    nb::dict profile() const {
        nb::dict result;
        const auto nanoseconds = decoder.profile();
        for (size_t i = 0; i < nanoseconds.size(); ++i) result[kPhaseNames[i]] = 1e-9 * nanoseconds[i];
        return result;
    }

  private:
    static StepInput step_input(const Array<int32_t>& token_ids, const Array<int32_t>& row_begin,
                                const Array<int32_t>& start_position, const Array<int32_t>& block_ids,
                                const Array<int32_t>& table_begin, const Array<int32_t>& logit_rows) {
        return {.token_ids = span_of(token_ids),
                .row_begin = span_of(row_begin),
                .start_position = span_of(start_position),
                .block_ids = span_of(block_ids),
                .table_begin = span_of(table_begin),
                .logit_rows = span_of(logit_rows),
                .pool_begin = {},
                .pool_end = {}};
    }
};

// Sampling alone, for tests: one row of logits per row of results.
nb::tuple sample_rows(FloatRows logits, const std::string& isa, Array<int32_t> sampling, Array<int32_t> drafted,
                      Array<int64_t> positions, Array<int32_t> targets, Array<int32_t> top, Array<float> numbers,
                      Array<int32_t> top_k, Array<uint64_t> seeds, Array<int32_t> ids, Array<int32_t> ids_begin,
                      Array<float> bias_values, Array<int32_t> mask, MaskRows masks) {
    const SamplingInput input = sampling_input(sampling, drafted, positions, targets, top, numbers, top_k, seeds, ids,
                                               ids_begin, bias_values, mask, masks);
    const auto rows = static_cast<int64_t>(logits.shape(0)), vocab = static_cast<int64_t>(logits.shape(1));
    if (vocab < 1) throw std::invalid_argument("no logits");
    check(input, rows, vocab);
    SamplerScratch scratch(vocab);
    SamplingSink sink(kernels_for(isa.c_str()), input, {&scratch, 1});
    std::vector<float> row(vocab);
    for (int64_t i = 0; i < rows; ++i) {
        std::copy_n(logits.data() + i * vocab, vocab, row.begin());
        sink.take(i, row, 0);
    }
    return results_of(sink, sink.sampled);
}

DecoderConfig make_config(int64_t hidden_size, int64_t intermediate_size, int64_t num_heads, int64_t num_kv_heads,
                          int64_t head_dim, int64_t vocab_size, float norm_eps, const std::string& activation,
                          float embedding_scale, float attention_scale, float attention_softcap, float logit_softcap,
                          bool tied_head, bool split_head, const std::vector<std::vector<double>>& inv_freqs,
                          const std::vector<double>& attention_factors, const std::vector<int64_t>& windows,
                          const std::vector<int64_t>& rotary_of_layer) {
    if (activation != "silu" && activation != "gelu_tanh")
        throw std::invalid_argument("unknown activation '" + activation + "'");
    if (attention_factors.size() != inv_freqs.size() || rotary_of_layer.size() != windows.size())
        throw std::invalid_argument("rotary or layer lists differ in length");
    DecoderConfig config{.hidden_size = hidden_size,
                         .intermediate_size = intermediate_size,
                         .num_heads = num_heads,
                         .num_kv_heads = num_kv_heads,
                         .head_dim = head_dim,
                         .vocab_size = vocab_size,
                         .norm_eps = norm_eps,
                         .activation = activation == "silu" ? GateActivation::Silu : GateActivation::GeluTanh,
                         .embedding_scale = embedding_scale,
                         .attention_scale = attention_scale,
                         .attention_softcap = attention_softcap,
                         .logit_softcap = logit_softcap,
                         .tied_head = tied_head,
                         .split_head = split_head,
                         .rotaries = {},
                         .layers = {}};
    for (size_t i = 0; i < inv_freqs.size(); ++i) config.rotaries.push_back({inv_freqs[i], attention_factors[i]});
    for (size_t i = 0; i < windows.size(); ++i) config.layers.push_back({windows[i], rotary_of_layer[i]});
    config.check();
    return config;
}

}  // namespace

void bind_decoder(nb::module_& m) {
    nb::class_<DecoderConfig>(m, "DecoderConfig")
        .def(
            "__init__",
            [](DecoderConfig* self, int64_t hidden_size, int64_t intermediate_size, int64_t num_heads,
               int64_t num_kv_heads, int64_t head_dim, int64_t vocab_size, float norm_eps,
               const std::string& activation, float embedding_scale, float attention_scale, float attention_softcap,
               float logit_softcap, bool tied_head, bool split_head, const std::vector<std::vector<double>>& inv_freqs,
               const std::vector<double>& attention_factors, const std::vector<int64_t>& windows,
               const std::vector<int64_t>& rotary_of_layer) {
                new (self) DecoderConfig(make_config(hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim,
                                                     vocab_size, norm_eps, activation, embedding_scale, attention_scale,
                                                     attention_softcap, logit_softcap, tied_head, split_head, inv_freqs,
                                                     attention_factors, windows, rotary_of_layer));
            },
            nb::kw_only(), "hidden_size"_a, "intermediate_size"_a, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a,
            "vocab_size"_a, "norm_eps"_a, "activation"_a, "embedding_scale"_a, "attention_scale"_a,
            "attention_softcap"_a, "logit_softcap"_a, "tied_head"_a, "split_head"_a, "inv_freqs"_a,
            "attention_factors"_a, "windows"_a, "rotary_of_layer"_a)
        .def(
            "kv_block_bytes",
            [](const DecoderConfig& c, const std::string& key_type, const std::string& value_type) {
                return KvCache::block_bytes(std::ssize(c.layers), c.num_kv_heads,
                                            make_kv_layout(kv_types(key_type, value_type), c.head_dim));
            },
            "key_type"_a, "value_type"_a)
        .def(
            "work_bytes",
            [](const DecoderConfig& c, int64_t max_rows, int64_t max_model_len, int threads) {
                const DecoderLimits limits{
                    .max_rows = max_rows, .max_model_len = max_model_len, .kv_blocks = 1, .kv_types = {}};
                return Decoder::work_bytes(c, limits, threads) + threads * SamplerScratch::bytes_for(c.vocab_size);
            },
            "max_rows"_a, "max_model_len"_a, "threads"_a);

    nb::class_<BoundDrafting>(m, "Drafting")
        .def(
            "__init__",
            [](BoundDrafting* self, std::shared_ptr<SuffixMatcher> matcher, std::vector<float> common,
               float common_weight, float least_worth, std::vector<double> step_ms, double least_gain, double balance,
               double allowance, double allowance_share, double most_ms) {
                new (self) BoundDrafting{{.matcher = std::move(matcher),
                                          .common = std::move(common),
                                          .common_weight = common_weight,
                                          .least_worth = least_worth,
                                          .policy = {.step_ms = std::move(step_ms),
                                                     .least_gain = least_gain,
                                                     .balance = balance,
                                                     .allowance = allowance,
                                                     .allowance_share = allowance_share},
                                          .most_ms = most_ms},
                                         {}};
            },
            nb::kw_only(), "matcher"_a, "common"_a, "common_weight"_a, "least_worth"_a, "step_ms"_a, "least_gain"_a,
            "balance"_a, "allowance"_a, "allowance_share"_a, "most_ms"_a)
        .def(
            "choose",
            [](const BoundDrafting& d, const std::vector<float>& chances) {
                const DraftChoice choice = choose_draft(chances, d.drafting.policy);
                return nb::make_tuple(choice.count, choice.cost);
            },
            "chances"_a)
        .def_prop_ro("balance", [](const BoundDrafting& d) { return d.drafting.policy.balance; })
        .def_prop_ro("steps", &BoundDrafting::listed);

    nb::class_<BoundDecoder>(m, "Decoder")
        .def(nb::init<const DecoderConfig&, int, const std::string&, int64_t, int64_t, int64_t, const std::string&,
                      const std::string&>(),
             nb::kw_only(), "config"_a, "threads"_a, "isa"_a, "max_rows"_a, "max_model_len"_a, "kv_blocks"_a,
             "key_type"_a, "value_type"_a)
        .def("set_weights", &BoundDecoder::set_weights, "weights"_a)
        .def("finish", [](BoundDecoder& d) { d.decoder.finish(); })
        .def("step", &BoundDecoder::step, "token_ids"_a, "row_begin"_a, "start_position"_a, "block_ids"_a,
             "table_begin"_a, "logit_rows"_a, "sampling"_a, "drafted"_a, "positions"_a, "targets"_a, "top"_a,
             "numbers"_a, "top_k"_a, "seeds"_a, "ids"_a, "ids_begin"_a, "bias_values"_a, "mask"_a, "masks"_a,
             "more_steps"_a, "stop_ids"_a, "stop_begin"_a, "drafting"_a.none(), "pool_begin"_a, "pool_end"_a,
             "pool_sums"_a)
        .def("logits", &BoundDecoder::logits, "token_ids"_a, "row_begin"_a, "start_position"_a, "block_ids"_a,
             "table_begin"_a, "logit_rows"_a)
        .def_prop_ro("most_screened_rows", [](const BoundDecoder& d) { return d.decoder.kernels().screen_rows; })
        .def_prop_ro("screened_rows", [](const BoundDecoder& d) { return d.decoder.screened_rows(); })
        .def("kv_block", &BoundDecoder::kv_block, "block"_a, "layer"_a, "kv_head"_a)
        .def(
            "populate_kv",
            [](const BoundDecoder& d, int64_t first, int64_t count) {
                const KvCache* const cache = d.decoder.kv_cache();
                if (cache == nullptr) throw std::logic_error("finish() comes first");
                return cache->populate(first, count);
            },
            "first"_a, "count"_a, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("isa", [](const BoundDecoder& d) { return d.decoder.kernels().isa; })
        .def_prop_ro("weight_bytes", [](BoundDecoder& d) { return d.decoder.weights().bytes(); })
        .def_prop_ro("bytes_per_row_step", [](BoundDecoder& d) { return d.decoder.weights().bytes_per_row_step(); })
        .def_prop_ro("kv_bytes", [](const BoundDecoder& d) { return d.decoder.kv_bytes(); })
        .def(
            "set_profiling", [](BoundDecoder& d, bool on) { d.decoder.set_profiling(on); }, "on"_a)
        .def("profile", &BoundDecoder::profile);

    m.def("sample_rows", &sample_rows, "logits"_a, "isa"_a, "sampling"_a, "drafted"_a, "positions"_a, "targets"_a,
          "top"_a, "numbers"_a, "top_k"_a, "seeds"_a, "ids"_a, "ids_begin"_a, "bias_values"_a, "mask"_a, "masks"_a);
    m.def("gumbel_noise", &gumbel_noise, "seed"_a, "position"_a, "token_id"_a);
}

}  // namespace lpx
