#include <nanobind/nanobind.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "bindings.h"

NB_MODULE(_native, m) {
    m.doc() = "The native core of LPX: packed weights, kernels, decoder and sampler.";
    lpx::bind_attention(m);
    lpx::bind_matrix(m);
    lpx::bind_decoder(m);
    lpx::bind_drafting(m);
    lpx::bind_vocabulary(m);
    lpx::bind_roofline(m);
    m.def(
        "trim_heap",
        [] {
#if defined(__GLIBC__)
            malloc_trim(0);
#endif
        },
        "Give freed memory of the heap back to the system.");
}
