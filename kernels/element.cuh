// The type of 16 bits of what a kernel reads and writes: f16, or bf16 where TREFOIL_BF16 is defined. A source that
// includes this file is compiled once for each type, with the same code but for conversions and products.
#pragma once

#include "common.cuh"

#ifdef TREFOIL_BF16
using Element = Bf16;
#define TREFOIL_ENTRY(name) name##_bf16
#else
using Element = F16;
#define TREFOIL_ENTRY(name) name
#endif

TREFOIL_DEVICE uint32_t pack_elements(float low, float high) { return Element::pack(low, high); }
TREFOIL_DEVICE float2 unpack_elements(uint32_t bits) { return Element::unpack(bits); }
