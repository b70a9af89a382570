// Python surface of the measurements of the machine.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "bindings.h"
#include "roofline.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lpx {

void bind_roofline(nb::module_& m) {
    using Unlocked = nb::call_guard<nb::gil_scoped_release>;
    nb::class_<Roofline>(m, "Roofline", "What the machine gives at most to some threads with one instruction set.")
        .def(
            "__init__",
            [](Roofline* self, int threads, const std::string& isa, int64_t bytes) {
                new (self) Roofline(threads, isa.c_str(), bytes);
            },
            Unlocked(), nb::kw_only(), "threads"_a, "isa"_a, "bytes"_a)
        .def_prop_ro("isa", &Roofline::isa)
        .def_prop_ro("threads", &Roofline::threads)
        .def("read", &Roofline::read, Unlocked(), "bytes"_a, "streams"_a, "fetched"_a, "seconds"_a,
             "Bytes a second of all threads, one figure a repetition; each reads the first `bytes` of its memory.")
        .def("multiply_add", &Roofline::multiply_add, Unlocked(), "kind"_a, "seconds"_a,
             "Multiply-adds a second of all threads, one figure a repetition; empty where there is no unit.");
}

}  // namespace lpx
