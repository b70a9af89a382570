#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "suffix_matcher.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lpx {

namespace {

std::vector<float> listed(const SuffixMatcher::Counts& counts) {
    return {counts.begin(), counts.end()};
}

}  // namespace

void bind_drafting(nb::module_& m) {
    m.attr("MATCH_CLASSES") = SuffixMatcher::kClasses;

    nb::class_<SharedTexts>(m, "SharedTexts")
        .def(nb::init<int64_t, int64_t>(), nb::kw_only(), "most_tokens"_a, "most_texts"_a)
        .def(
            "add", [](SharedTexts& t, const std::vector<int32_t>& ids) { t.add(ids); }, "ids"_a)
        .def_prop_ro("tokens", [](const SharedTexts& t) { return std::ssize(t.index().tokens()); })
        .def_prop_ro("texts", [](const SharedTexts& t) { return t.texts(); });

    nb::class_<SuffixMatcher>(m, "SuffixMatcher")
        .def(
            "__init__",
            [](SuffixMatcher* self, std::shared_ptr<SharedTexts> shared) {
                new (self) SuffixMatcher(std::move(shared));
            },
            "shared"_a.none() = nb::none())
        .def(
            "extend", [](SuffixMatcher& s, const std::vector<int32_t>& ids, bool judge) { s.extend(ids, judge); },
            "ids"_a, "judge"_a)
        .def(
            "propose",
            [](SuffixMatcher& s, int64_t most, const std::vector<float>& common, float common_weight,
               float least_chance, float least_worth) {
                SuffixMatcher::Draft draft = s.propose({most, least_chance, least_worth}, common, common_weight);
                return nb::make_tuple(std::move(draft.ids), std::move(draft.chances));
            },
            "most"_a, "common"_a, "common_weight"_a, "least_chance"_a = 0.0f, "least_worth"_a = 0.0f)
        .def("__len__", &SuffixMatcher::size)
        .def_prop_ro("judged", [](const SuffixMatcher& s) { return listed(s.judged()); })
        .def_prop_ro("right", [](const SuffixMatcher& s) { return listed(s.right()); });
}

}  // namespace lpx
