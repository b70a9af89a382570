#include "decoder.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "screen_rows.h"

namespace lpx {

namespace {

// Up to so many rows, every thread computes norms and quantization of all rows for itself: cheaper than a barrier.
constexpr int64_t kPrivateRows = 4;
// From so many rows a thread on, each thread takes some rows through whole matrices, and waits for the others only
// around attention: every thread then unpacks all weights, which costs little beside the products of that many rows.
constexpr int64_t kOwnRows = 128;
// Logits of so many rows at a time at most, fewer when the vocabulary is large.
constexpr int64_t kMaxLogitRows = 64;
constexpr int64_t kLogitFloats = int64_t{8} << 20;
// Groups of gate and up that are multiplied at a time, for many rows: they stay in the cache until they are combined.
constexpr int64_t kGateGroups = 8;
// When a screen leaves more than one of so many groups to be computed, the next steps do without it: first so many,
// twice as many each time that it happens again at once.
constexpr int64_t kScreenPays = 3;
// Groups with an allowed id are computed at once where they are fewer than one in so many.
constexpr int64_t kFewAllowed = 8;
constexpr int kLeastPause = 8, kMostPause = 512;

int64_t pad(int64_t cols) {
    return (cols + kBlockCols - 1) / kBlockCols * kBlockCols;
}

int64_t logit_rows(const DecoderConfig& c) {
    return std::clamp<int64_t>(kLogitFloats / c.vocab_size, 1, kMaxLogitRows);
}

int64_t widest(const DecoderConfig& c) {
    return pad(std::max({c.hidden_size, c.query_size(), c.intermediate_size}));
}

struct Range {
    int64_t begin, end;
    bool empty() const { return begin >= end; }
};

Range share(int64_t count, int thread, int threads) {
    return {count * thread / threads, count * (thread + 1) / threads};
}

}  // namespace

void DecoderConfig::check() const {
    const auto fail = [](const std::string& what) { throw std::invalid_argument(what); };
    if (hidden_size < 1 || intermediate_size < 1 || vocab_size < 1 || layers.empty()) fail("a size is not positive");
    if (num_kv_heads < 1 || num_heads < 1 || num_heads % num_kv_heads != 0)
        fail(std::to_string(num_heads) + " query heads cannot share " + std::to_string(num_kv_heads) +
             " KV heads evenly");
    if (head_dim < 2 || head_dim > kMaxHeadDim)
        fail("head size " + std::to_string(head_dim) + " is outside [2, " + std::to_string(kMaxHeadDim) + "]");
    if (rotaries.empty()) fail("no rotary embedding");
    for (const RotaryConfig& r : rotaries)
        if (r.inv_freq.empty() || 2 * std::ssize(r.inv_freq) > head_dim)
            fail("rotary frequencies do not fit the head size");
    for (const LayerConfig& l : layers)
        if (l.rotary < 0 || l.rotary >= std::ssize(rotaries) || l.window < 0)
            fail("a layer has a bad rotary index or window");
}

// Activations of some rows as matrices read them.
struct Decoder::Quantized {
    AlignedBuffer<int8_t> q8;
    AlignedBuffer<float> scale;
    AlignedBuffer<int16_t> sum;
    AlignedBuffer<RefinedQuad> refined;
    AlignedBuffer<float> normed;

    Quantized(const DecoderConfig& c, int64_t rows)
        : q8(rows * widest(c)),
          scale(rows * widest(c) / kBlockCols),
          sum(rows * widest(c) / 16),
          refined(rows * refined_quads(widest(c))),
          normed(rows * pad(c.hidden_size)) {}
    // Where row 0 of rows of `cols` would lie when `first` lies as rows of the widest matrix do: so threads that keep
    // to their own rows, the one that begins with `first` among them, never share memory, however wide the rows of each
    // are.
    QuantizedRow rows(int64_t cols, int64_t first, const DecoderConfig& c) {
        const int64_t most = widest(c);
        return {.q8 = q8.data() + first * (most - cols),
                .scale = scale.data() + first * (most - cols) / kBlockCols,
                .sum = sum.data() + first * (most - cols) / 16,
                .refined = refined.data() + first * (refined_quads(most) - refined_quads(cols))};
    }
    static size_t bytes_for(const DecoderConfig& c, int64_t rows) {
        return rows * (widest(c) + widest(c) / kBlockCols * sizeof(float) + widest(c) / 16 * sizeof(int16_t) +
                       refined_quads(widest(c)) * sizeof(RefinedQuad) + pad(c.hidden_size) * sizeof(float));
    }
};

// Everything a step works in, allocated once. Strides are padded to whole blocks of columns; the padding stays zero.
struct Decoder::Buffers {
    int64_t hidden, query, kv, inter, vocab;  // strides
    AlignedBuffer<float> x;                   // residual stream
    AlignedBuffer<float> projected;           // output of the o and down matrices
    AlignedBuffer<float> q, k, v, attended, gated, logits;
    Quantized shared;
    ScreenRows screen;
    AlignedBuffer<float> upper;  // [rows][groups of the head]
    int64_t groups;              // of the head
    struct Largest {
        float logit = -std::numeric_limits<float>::infinity();
        int32_t id = -1;
        bool beats(const Largest& other) const {
            return logit > other.logit || (logit == other.logit && (other.id < 0 || id < other.id));
        }
    };
    struct PerThread {
        AlignedBuffer<float> x;  // copy of the residual stream, for few rows
        Quantized quantized;
        AlignedBuffer<float> gate, up;
        AlignedBuffer<std::byte> scratch;
        ScreenRows screen;
        AlignedBuffer<float> settled;             // logits of a group
        std::vector<Largest> promising, largest;  // of each screened row: in one group, in all of the thread's
        bool unbounded = false;                   // some row of activations has no upper bounds
        int64_t settled_groups = 0;               // of all rows
    };
    std::vector<PerThread> threads;

    static int64_t head_groups(const DecoderConfig& c) { return (c.vocab_size + kGroupRows - 1) / kGroupRows; }
    static int64_t chunk_stride() { return kGateGroups * kGroupRows; }

    Buffers(const DecoderConfig& c, const DecoderLimits& l, int thread_count, size_t scratch_bytes)
        : hidden(pad(c.hidden_size)),
          query(pad(c.query_size())),
          kv(pad(c.kv_size())),
          inter(pad(c.intermediate_size)),
          vocab(pad(c.vocab_size)),
          x(l.max_rows * hidden),
          projected(l.max_rows * hidden),
          q(l.max_rows * query),
          k(l.max_rows * kv),
          v(l.max_rows * kv),
          attended(l.max_rows * query),
          gated(l.max_rows * inter),
          logits(logit_rows(c) * vocab),
          shared(c, std::max(l.max_rows, logit_rows(c))),
          screen(hidden, kMostScreenRows),
          upper(kMostScreenRows * head_groups(c)),
          groups(head_groups(c)) {
        for (int t = 0; t < thread_count; ++t)
            threads.push_back({AlignedBuffer<float>(kPrivateRows * hidden), Quantized(c, kPrivateRows),
                               AlignedBuffer<float>(l.max_rows * chunk_stride()),
                               AlignedBuffer<float>(l.max_rows * chunk_stride()),
                               AlignedBuffer<std::byte>(scratch_bytes), ScreenRows(hidden, kMostScreenRows),
                               AlignedBuffer<float>(kGroupRows), std::vector<Largest>(kMostScreenRows),
                               std::vector<Largest>(kMostScreenRows)});
    }
    static size_t bytes_for(const DecoderConfig& c, const DecoderLimits& l, int thread_count) {
        const int64_t hidden = pad(c.hidden_size), query = pad(c.query_size()), kv = pad(c.kv_size());
        const size_t shared = l.max_rows * (2 * hidden + 2 * query + 2 * kv + pad(c.intermediate_size)) +
                              logit_rows(c) * pad(c.vocab_size) + kMostScreenRows * head_groups(c);
        const size_t per_thread = kPrivateRows * hidden + 2 * l.max_rows * chunk_stride() + kGroupRows;
        return sizeof(float) * (shared + thread_count * per_thread) +
               Quantized::bytes_for(c, std::max(l.max_rows, logit_rows(c))) +
               ScreenRows::bytes_for(hidden, kMostScreenRows) +
               thread_count * (Quantized::bytes_for(c, kPrivateRows) + ScreenRows::bytes_for(hidden, kMostScreenRows) +
                               2 * kMostScreenRows * sizeof(Largest));
    }
};

// One thread's way through a step. All threads run the same code and meet at the barriers.
struct Decoder::Worker {
    Decoder& d;
    const StepInput& input;
    LogitSink& sink;
    const int thread;
    const int threads = d.pool_.size();
    const DecoderConfig& c = d.config_;
    const KernelTable& kernels = d.kernels_;
    Buffers& b = *d.buffers_;
    Buffers::PerThread& own = b.threads[thread];
    const int64_t rows = input.rows();
    const bool few = rows <= kPrivateRows;
    const bool by_rows = threads > 1 && rows / threads >= kOwnRows;
    // Rows whose norms this thread computes, and where it keeps their residual stream.
    const Range norm_rows = few ? Range{0, rows} : share(rows, thread, threads);
    const Range product_rows = by_rows ? norm_rows : Range{0, rows};
    float* const x = few ? own.x.data() : b.x.data();
    Quantized& quantized = few ? own.quantized : b.shared;
    Clock::time_point phase_start = Clock::now();

    void run() {
        embed();
        const AttentionStage::Rows attention_rows{.query = b.q.data(),
                                                  .key = b.k.data(),
                                                  .value = b.v.data(),
                                                  .out = b.attended.data(),
                                                  .query_stride = b.query,
                                                  .kv_stride = b.kv,
                                                  .out_stride = b.query};
        const WeightVector* pending_norm = nullptr;  // of `projected`, which is still to be added to x
        for (size_t layer = 0; layer < c.layers.size(); ++layer) {
            const LayerWeights& w = d.weights_.layers()[layer];
            const Activations input_rows = normed(pending_norm, w.attn_norm, needs_int8({&w.q, &w.k, &w.v}));
            end_phase(Phase::Norm);
            multiply_qkv(w, input_rows);
            meet(Phase::Qkv);

            if (d.attention_->stores_first()) {
                d.attention_->store_rows(layer, w, attention_rows, thread);
                meet(Phase::Attention);
            }
            d.attention_->attend(layer, w, attention_rows, thread);
            meet(Phase::Attention);

            const Activations attended = quantize(b.attended.data(), b.query, needs_int8({&w.o}));
            end_phase(Phase::Norm);
            multiply(w.o, attended, w.o_bias, b.projected.data(), b.hidden);
            hand_over(Phase::Output);

            const Activations ffn_rows = normed(&w.attn_post_norm, w.ffn_norm, needs_int8({&w.gate, &w.up}));
            end_phase(Phase::Norm);
            multiply_gate_up(w, ffn_rows);
            hand_over(Phase::GateUp);

            const Activations gated = quantize(b.gated.data(), b.inter, needs_int8({&w.down}));
            end_phase(Phase::Norm);
            multiply(w.down, gated, {}, b.projected.data(), b.hidden);
            hand_over(Phase::Down);
            pending_norm = &w.ffn_post_norm;
        }
        if (input.logit_rows.empty() && input.pools() == 0) return;
        for (int64_t row = norm_rows.begin; row < norm_rows.end; ++row) add_projected(row, *pending_norm);
        if (!few) meet(Phase::Norm);
        add_to_pools();
        // A row may come twice: there can be more of them than rows.
        const int64_t most = few ? std::min(kPrivateRows, logit_rows(c)) : logit_rows(c);
        for (int64_t first = 0; first < std::ssize(input.logit_rows); first += most) {
            if (first > 0) meet(Phase::Sample);  // the sinks are done with the slice before
            make_logits(first, std::min(std::ssize(input.logit_rows) - first, most));
        }
    }

    void embed() {
        for (int64_t row = norm_rows.begin; row < norm_rows.end; ++row) {
            float* const out = x + row * b.hidden;
            d.weights_.embedding().decode(input.token_ids[row], out);
            if (c.embedding_scale != 1.0f) kernels.scale(out, c.embedding_scale, c.hidden_size);
        }
        const Range share_of_rows = share(rows, thread, threads);
        for (int64_t s = 0; s < input.sequences(); ++s) {
            const int64_t begin = std::max<int64_t>(share_of_rows.begin, input.row_begin[s]);
            const int64_t end = std::min<int64_t>(share_of_rows.end, input.row_begin[s + 1]);
            for (int64_t row = begin; row < end; ++row)
                d.rotary_->fill(row, input.start_position[s] + row - input.row_begin[s]);
        }
        end_phase(Phase::Begin);
    }

    static bool needs_int8(std::initializer_list<const PackedMatrix*> matrices) {
        return std::any_of(matrices.begin(), matrices.end(), [](const PackedMatrix* m) { return !m->float_weights(); });
    }

    // x += projected, normalized first where the model has such a norm.
    void add_projected(int64_t row, const WeightVector& post_norm) {
        const float* y = b.projected.data() + row * b.hidden;
        if (!post_norm.empty()) {
            float* const normed = quantized.normed.data() + row * b.hidden;
            kernels.rms_norm(y, post_norm.data(), c.norm_eps, c.hidden_size, normed);
            y = normed;
        }
        kernels.add(x + row * b.hidden, y, c.hidden_size);
    }

    // Norm of x, ready for matrices; `pending` is the norm of what is added to x first, if anything is. All of it row
    // by row, while the row is in the cache.
    Activations normed(const WeightVector* pending, const WeightVector& norm, bool int8) {
        const QuantizedRow place = own_place(b.hidden);
        for (int64_t row = norm_rows.begin; row < norm_rows.end; ++row) {
            if (pending != nullptr) add_projected(row, *pending);
            kernels.rms_norm(x + row * b.hidden, norm.data(), c.norm_eps, c.hidden_size,
                             quantized.normed.data() + row * b.hidden);
            if (int8) quantize_rows(quantized.normed.data(), b.hidden, {row, row + 1}, place);
        }
        if (!few) hand_over(Phase::Norm);
        return activations(quantized.normed.data(), b.hidden, place);
    }

    // `values` are complete on all threads.
    Activations quantize(const float* values, int64_t cols, bool int8) {
        if (int8) quantize_rows(values, cols, norm_rows, own_place(cols));
        if (!few) hand_over(Phase::Norm);
        return activations(values, cols, own_place(cols));
    }
    QuantizedRow own_place(int64_t cols) const { return quantized.rows(cols, product_rows.begin, c); }
    void quantize_rows(const float* values, int64_t cols, Range range, const QuantizedRow& to) {
        if (range.empty()) return;
        kernels.quantize_rows(values + range.begin * cols, range.end - range.begin, cols,
                              {.q8 = to.q8 + range.begin * cols,
                               .scale = to.scale + range.begin * (cols / kBlockCols),
                               .sum = to.sum + range.begin * (cols / 16),
                               .refined = to.refined + range.begin * refined_quads(cols)});
    }
    static Activations activations(const float* values, int64_t cols, const QuantizedRow& from) {
        return {
            .cols = cols, .f32 = values, .q8 = from.q8, .scale = from.scale, .sum = from.sum, .refined = from.refined};
    }
    static Activations from_row(const Activations& a, int64_t row) {
        const int64_t blocks = a.cols / kBlockCols;
        return {.cols = a.cols,
                .f32 = a.f32 + row * a.cols,
                .q8 = a.q8 + row * a.cols,
                .scale = a.scale + row * blocks,
                .sum = a.sum + row * blocks * 2,
                .refined = a.refined + row * refined_quads(a.cols)};
    }

    // Output rows [groups.begin * 16, groups.end * 16) of a matrix for `count` rows of activations.
    void multiply_groups(const PackedMatrix& m, Range groups, const Activations& a, int64_t count,
                         const WeightVector& bias, float* out, int64_t stride) {
        if (groups.empty()) return;
        kernels.matmul(m, groups.begin, groups.end, a, count, out, stride, own.scratch.data());
        if (bias.empty()) return;
        const int64_t begin = groups.begin * kGroupRows, end = std::min(groups.end * kGroupRows, m.rows());
        for (int64_t row = 0; row < count; ++row)
            kernels.add(out + row * stride + begin, bias.data() + begin, end - begin);
    }

    // What this thread computes of a matrix: product_rows of the activations times these groups or bytes.
    Range own_share(int64_t count) const { return by_rows ? Range{0, count} : share(count, thread, threads); }

    void multiply(const PackedMatrix& m, const Activations& a, const WeightVector& bias, float* out, int64_t stride) {
        multiply_rows(m, own_share(m.groups()), a, bias, out, stride);
    }
    void multiply_rows(const PackedMatrix& m, Range groups, const Activations& a, const WeightVector& bias, float* out,
                       int64_t stride) {
        multiply_groups(m, groups, from_row(a, product_rows.begin), product_rows.end - product_rows.begin, bias,
                        out + product_rows.begin * stride, stride);
    }

    // The groups of all three matrices in a row, divided by bytes.
    void multiply_qkv(const LayerWeights& w, const Activations& a) {
        const PackedMatrix* const matrices[] = {&w.q, &w.k, &w.v};
        const WeightVector* const biases[] = {&w.q_bias, &w.k_bias, &w.v_bias};
        float* const outs[] = {b.q.data(), b.k.data(), b.v.data()};
        const int64_t strides[] = {b.query, b.kv, b.kv};
        int64_t total = 0;
        for (const PackedMatrix* m : matrices) total += m->groups() * m->group_bytes();
        const Range bytes = own_share(total);
        int64_t offset = 0;
        for (int i = 0; i < 3; ++i) {
            const PackedMatrix& m = *matrices[i];
            // A group belongs to the thread in whose share its first byte lies.
            const auto first_from = [&](int64_t byte) {
                const auto size = static_cast<int64_t>(m.group_bytes());
                return std::clamp<int64_t>((byte - offset + size - 1) / size, 0, m.groups());
            };
            multiply_rows(m, {first_from(std::max(bytes.begin, offset)), first_from(std::max(bytes.end, offset))}, a,
                          *biases[i], outs[i], strides[i]);
            offset += m.groups() * m.group_bytes();
        }
    }

    void multiply_gate_up(const LayerWeights& w, const Activations& a) {
        const Range groups = own_share(w.gate.groups());
        const Activations own_rows = from_row(a, product_rows.begin);
        const int64_t count = product_rows.end - product_rows.begin;
        const auto combine = c.activation == GateActivation::Silu ? kernels.silu_mul : kernels.gelu_tanh_mul;
        // Few rows take as many groups as the buffers hold: the longer a stream of weights, the faster.
        const int64_t step = few ? own.gate.size() / (rows * kGroupRows) : kGateGroups;
        const int64_t stride = step * kGroupRows;
        for (int64_t g = groups.begin; g < groups.end; g += step) {
            const Range chunk{g, std::min(g + step, groups.end)};
            const int64_t begin = g * kGroupRows, end = std::min(chunk.end * kGroupRows, c.intermediate_size);
            // matmul writes output row n at out[n]: shifted back, the chunk starts at the buffer's start.
            kernels.matmul(w.gate, chunk.begin, chunk.end, own_rows, count, own.gate.data() - begin, stride,
                           own.scratch.data());
            kernels.matmul(w.up, chunk.begin, chunk.end, own_rows, count, own.up.data() - begin, stride,
                           own.scratch.data());
            for (int64_t row = 0; row < count; ++row)
                combine(own.gate.data() + row * stride, own.up.data() + row * stride, end - begin,
                        b.gated.data() + (product_rows.begin + row) * b.inter + begin);
        }
    }

    // Each number of a sum belongs to one thread, which adds the rows in their order: the bits do not depend on how a
    // prompt was cut (I1).
    void add_to_pools() {
        if (input.pools() == 0) return;
        float* const hidden = b.shared.normed.data();
        for (int64_t p = 0; p < input.pools(); ++p) {
            const int64_t first = input.pool_begin[p];
            const Range range = share(input.pool_end[p] - first, thread, threads);
            for (int64_t row = first + range.begin; row < first + range.end; ++row)
                kernels.rms_norm(x + row * b.hidden, d.weights_.final_norm().data(), c.norm_eps, c.hidden_size,
                                 hidden + row * b.hidden);
        }
        meet(Phase::Norm);
        const Range columns = share(c.hidden_size, thread, threads);
        for (int64_t p = 0; p < input.pools(); ++p) {
            double* const sum = input.pool_sums + p * c.hidden_size;
            for (int64_t row = input.pool_begin[p]; row < input.pool_end[p]; ++row)
                for (int64_t i = columns.begin; i < columns.end; ++i) sum[i] += hidden[row * b.hidden + i];
        }
        meet(Phase::Norm);  // the head writes to the same rows
    }

    // Logits of the rows [first, first + count) of logit_rows, or what they are wanted for.
    void make_logits(int64_t first, int64_t count) {
        const PackedMatrix& head = d.weights_.head();
        Quantized& to = few ? own.quantized : b.shared;
        const Range range = few ? Range{0, count} : share(count, thread, threads);
        for (int64_t i = range.begin; i < range.end; ++i)
            kernels.rms_norm(x + input.logit_rows[first + i] * b.hidden, d.weights_.final_norm().data(), c.norm_eps,
                             c.hidden_size, to.normed.data() + i * b.hidden);
        const bool screen = can_screen(first, count);
        if (!head.float_weights()) quantize_rows(to.normed.data(), b.hidden, range, to.rows(b.hidden, 0, c));
        if (!few && !screen) meet(Phase::Norm);
        const Activations a = activations(to.normed.data(), b.hidden, to.rows(b.hidden, 0, c));
        const Range groups = share(head.groups(), thread, threads);
        if (screen && find_largest(first, a, count, range, groups)) return;
        multiply_groups(head, groups, a, count, {}, b.logits.data(), b.vocab);
        if (c.logit_softcap > 0.0f && !groups.empty()) {
            const int64_t begin = groups.begin * kGroupRows, end = std::min(groups.end * kGroupRows, c.vocab_size);
            for (int64_t i = 0; i < count; ++i)
                kernels.softcap(b.logits.data() + i * b.vocab + begin, c.logit_softcap, end - begin);
        }
        meet(Phase::Head);
        if (thread == 0 && d.screen_pause_ > 0) --d.screen_pause_;
        for (int64_t i = thread; i < count; i += threads)
            sink.take(first + i, {b.logits.data() + i * b.vocab, static_cast<size_t>(c.vocab_size)}, thread);
        end_phase(Phase::Sample);
    }

    // All threads come to the same answer.
    bool can_screen(int64_t first, int64_t count) const {
        // A cap may make different logits equal.
        if (count > kernels.screen_rows || !d.weights_.head().split() || c.logit_softcap > 0.0f || d.screen_pause_ > 0)
            return false;
        for (int64_t i = 0; i < count; ++i)
            if (!sink.wants_largest_alone(first + i)) return false;
        return true;
    }

    // Finds the largest logit of each row without computing all: screens this thread's groups by the high nibbles of
    // their weights, then computes those that may hold the largest. Returns false on all threads when that cannot be
    // said. `range` are the rows that this thread quantized.
    bool find_largest(int64_t first, const Activations& a, int64_t count, Range range, Range groups) {
        ScreenRows& prepared = few ? own.screen : b.screen;
        for (int64_t i = range.begin; i < range.end; ++i) prepared.prepare(a, i);
        if (!few) meet(Phase::Norm);
        const ScreenTask task{.matrix = &d.weights_.head(),
                              .group_begin = groups.begin,
                              .group_end = groups.end,
                              .rows = prepared.data(),
                              .row_count = count,
                              .approximate = b.logits.data(),
                              .approximate_stride = b.vocab,
                              .upper = b.upper.data(),
                              .upper_stride = b.groups};
        own.unbounded = false;
        own.settled_groups = 0;
        // A grammar often leaves a handful of tokens: then their groups are computed, and no others are looked at.
        const bool settles_all = allows_few(first, count, groups);
        if (!groups.empty() && !settles_all) kernels.screen(task);
        // The most promising group of each row gives a logit that the largest is not below.
        for (int64_t i = 0; i < count; ++i) {
            own.promising[i] = own.largest[i] = {};
            if (groups.empty()) continue;
            const std::span<const uint32_t> allowed = sink.allowed(first + i);
            if (settles_all) {
                for (int64_t g = groups.begin; g < groups.end; ++g)
                    if (allows(allowed, g)) settle(a, i, g, allowed);
                own.unbounded |= own.largest[i].logit == std::numeric_limits<float>::infinity();
            } else {
                float* const upper = b.upper.data() + i * b.groups;
                const float* best = std::max_element(upper + groups.begin, upper + groups.end);
                own.unbounded |= *best == std::numeric_limits<float>::infinity();
                if (!allowed.empty()) {
                    for (int64_t g = groups.begin; g < groups.end; ++g)
                        if (!allows(allowed, g)) upper[g] = -std::numeric_limits<float>::infinity();
                    best = std::max_element(upper + groups.begin, upper + groups.end);
                }
                settle(a, i, best - upper, allowed);
            }
            own.promising[i] = own.largest[i];
        }
        meet(Phase::Head);
        for (const Buffers::PerThread& other : b.threads)
            if (other.unbounded) return false;
        for (int64_t i = 0; i < count; ++i) {
            float least = own.promising[i].logit;
            for (const Buffers::PerThread& other : b.threads) least = std::max(least, other.promising[i].logit);
            // No logit that is allowed is a number: the way through all logits tells what is wrong.
            if (least == -std::numeric_limits<float>::infinity()) return false;
            if (settles_all) continue;
            const std::span<const uint32_t> allowed = sink.allowed(first + i);
            for (int64_t g = groups.begin; g < groups.end; ++g)
                if (b.upper[i * b.groups + g] >= least && kernels.refine(task, g, i) >= least) settle(a, i, g, allowed);
        }
        meet(Phase::Head);
        for (int64_t i = thread; i < count; i += threads) {
            Buffers::Largest largest;
            for (const Buffers::PerThread& other : b.threads)
                if (other.largest[i].beats(largest)) largest = other.largest[i];
            sink.take_largest(first + i, largest.id);
        }
        if (thread == 0) {
            int64_t settled = 0;
            for (const Buffers::PerThread& other : b.threads) settled += other.settled_groups;
            const bool paid = settled * kScreenPays <= count * b.groups;
            if (!paid) d.screen_pause_ = d.next_screen_pause_;
            d.next_screen_pause_ = paid ? kLeastPause : std::min(2 * d.next_screen_pause_, kMostPause);
            d.screened_rows_ += count;
        }
        end_phase(Phase::Sample);
        return true;
    }

    // Whether any id of a group is allowed. Empty: all are.
    static bool allows(std::span<const uint32_t> allowed, int64_t group) {
        static_assert(kGroupRows == 16);
        return allowed.empty() || (allowed[group / 2] >> (group % 2 * 16) & 0xffff) != 0;
    }

    // Whether so few groups of every row have an allowed id that to compute them takes less than to screen all.
    bool allows_few(int64_t first, int64_t count, Range groups) const {
        int64_t left = (groups.end - groups.begin) / kFewAllowed;
        for (int64_t i = 0; i < count; ++i) {
            const std::span<const uint32_t> allowed = sink.allowed(first + i);
            if (allowed.empty()) return false;
            for (int64_t g = groups.begin; g < groups.end; ++g) left -= allows(allowed, g);
            if (left < 0) return false;
        }
        return true;
    }

    // Computes the logits of one group and row of activations, as multiply_groups would.
    void settle(const Activations& a, int64_t row, int64_t group, std::span<const uint32_t> allowed) {
        const PackedMatrix& head = d.weights_.head();
        const int64_t begin = group * kGroupRows;
        const Activations one = from_row(a, row);
        // matmul writes output row n at out[n]: shifted back, the group starts at the buffer's start.
        kernels.matmul(head, group, group + 1, one, 1, own.settled.data() - begin, 0, own.scratch.data());
        const int64_t end = std::min(begin + kGroupRows, head.rows());
        for (int64_t n = begin; n < end; ++n) {
            const Buffers::Largest found{own.settled[n - begin], static_cast<int32_t>(n)};
            if (!allowed.empty() && (allowed[n / 32] >> (n % 32) & 1) == 0) continue;
            if (found.beats(own.largest[row])) own.largest[row] = found;
        }
        ++own.settled_groups;
    }

    // What comes next reads what other threads computed, unless each keeps to its own rows.
    void hand_over(Phase ended) {
        if (by_rows) return end_phase(ended);
        meet(ended);
    }

    void meet(Phase ended) {
        end_phase(ended);
        d.pool_.barrier();
        end_phase(Phase::Wait);
    }

    void end_phase(Phase phase) {
        if (thread != 0 || !d.profiling_) return;
        const Clock::time_point now = Clock::now();
        d.add_time(phase, now - phase_start);
        phase_start = now;
    }
};

Decoder::Decoder(DecoderConfig config, DecoderLimits limits, int threads, const char* isa)
    : config_(std::move(config)),
      limits_(limits),
      kernels_(kernels_for(isa)),
      pool_(threads),
      weights_((config_.check(), config_)),
      next_screen_pause_(kLeastPause) {
    if (limits.max_rows < 1 || limits.max_model_len < 1 || limits.max_model_len > INT32_MAX || limits.kv_blocks < 1)
        throw std::invalid_argument("a limit of the decoder is not positive");
}

Decoder::~Decoder() = default;

void Decoder::finish() {
    weights_.check_complete();
    size_t scratch = 0;
    weights_.for_each_matrix([&](const PackedMatrix& m) { scratch = std::max(scratch, matmul_scratch_bytes(m)); });
    cache_ = std::make_unique<KvCache>(limits_.kv_blocks, std::ssize(config_.layers), config_.num_kv_heads,
                                       make_kv_layout(limits_.kv_types, config_.head_dim));
    rotary_ = std::make_unique<RotaryRows>(config_, limits_.max_rows);
    attention_ = std::make_unique<AttentionStage>(config_, kernels_, *cache_, *rotary_, pool_.size(), limits_.max_rows);
    buffers_ = std::make_unique<Buffers>(config_, limits_, pool_.size(), scratch);
}

size_t Decoder::work_bytes(const DecoderConfig& config, const DecoderLimits& limits, int threads) {
    return Buffers::bytes_for(config, limits, threads) + RotaryRows::bytes_for(config, limits.max_rows) +
           AttentionStage::bytes_for(config, threads);
}

void Decoder::step(const StepInput& input, LogitSink& sink) {
    check(input);
    if (input.rows() == 0) return;
    attention_->begin_step(input);
    Clock::time_point own_end;
    pool_.run([&](int thread) {
        Worker worker{.d = *this, .input = input, .sink = sink, .thread = thread};
        worker.run();
        if (thread == 0) own_end = worker.phase_start;
    });
    if (profiling_) add_time(Phase::Wait, Clock::now() - own_end);
}

void Decoder::check(const StepInput& input) const {
    const auto fail = [](const std::string& what) { throw std::invalid_argument(what); };
    if (!buffers_) fail("the decoder is not finished: weights are missing");
    if (input.rows() > limits_.max_rows)
        fail("a step of " + std::to_string(input.rows()) + " rows; at most " + std::to_string(limits_.max_rows) +
             " fit");
    const int64_t sequences = input.sequences();
    if (std::ssize(input.row_begin) != sequences + 1 || std::ssize(input.table_begin) != sequences + 1 ||
        input.row_begin.front() != 0 || input.row_begin.back() != input.rows() || input.table_begin.front() != 0 ||
        input.table_begin.back() != std::ssize(input.block_ids))
        fail("offsets of the step do not match its rows and block tables");
    for (const int32_t id : input.token_ids)
        if (id < 0 || id >= config_.vocab_size)
            fail("token id " + std::to_string(id) + " is outside the vocabulary of " +
                 std::to_string(config_.vocab_size));
    for (const int32_t id : input.block_ids)
        if (id < 0 || id >= limits_.kv_blocks)
            fail("KV block " + std::to_string(id) + " does not exist; there are " + std::to_string(limits_.kv_blocks));
    for (int64_t s = 0; s < sequences; ++s) {
        const int64_t rows = int64_t{input.row_begin[s + 1]} - input.row_begin[s];
        const int64_t end = input.start_position[s] + rows;
        if (rows < 1 || input.start_position[s] < 0 || end > limits_.max_model_len)
            fail("positions [" + std::to_string(input.start_position[s]) + ", " + std::to_string(end) +
                 ") do not fit a context of " + std::to_string(limits_.max_model_len));
        const int64_t table = int64_t{input.table_begin[s + 1]} - input.table_begin[s];
        if (table < 0 || table * kKvBlock < end)
            fail("a block table of " + std::to_string(table) + " blocks does not reach position " +
                 std::to_string(end - 1));
    }
    int64_t previous = 0;
    for (const int32_t row : input.logit_rows) {
        if (row < previous || row >= input.rows()) fail("rows that want logits are out of range or out of order");
        previous = row;
    }
    if (std::ssize(input.pool_end) != input.pools() || (input.pools() > 0 && input.pool_sums == nullptr))
        fail("pools without an end or a sum");
    previous = 0;
    for (int64_t p = 0; p < input.pools(); ++p) {
        if (input.pool_begin[p] < previous || input.pool_end[p] <= input.pool_begin[p] ||
            input.pool_end[p] > input.rows())
            fail("pooled rows are out of range or out of order");
        previous = input.pool_end[p];
    }
}

void Decoder::set_profiling(bool on) {
    profiling_ = on;
    profile_ = {};
}

}  // namespace lpx
