// What each bind_*.cpp adds to the extension module; module.cpp calls them.
#pragma once

#include <nanobind/nanobind.h>

namespace lpx {

void bind_attention(nanobind::module_& m);
void bind_matrix(nanobind::module_& m);
void bind_decoder(nanobind::module_& m);
void bind_drafting(nanobind::module_& m);
void bind_vocabulary(nanobind::module_& m);
void bind_roofline(nanobind::module_& m);

}  // namespace lpx
