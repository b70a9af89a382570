#include <nanobind/nanobind.h>

#include "bindings.h"

NB_MODULE(_native, m) {
    m.doc() = "The native core of LPX: packed weights, kernels, decoder and sampler.";
    lpx::bind_matrix(m);
    lpx::bind_decoder(m);
}
