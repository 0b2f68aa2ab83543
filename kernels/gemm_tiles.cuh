// The tiles of the implicit-GEMM kernels. A test compares these lines with the table in implicit_gemm.rs.
#pragma once

#include "implicit_gemm.cuh"

//                           pixels  channels  k  warps (pixels x channels)  stages  blocks an SM
using Tile256x128 = GemmTile<256, 128, 64, 4, 2, 3, 1>;
using Tile256x64 = GemmTile<256, 64, 32, 4, 1, 4, 2>;
using Tile128x128 = GemmTile<128, 128, 64, 2, 2, 3, 2>;
using Tile128x64 = GemmTile<128, 64, 64, 2, 2, 3, 3>;
using Tile128x32 = GemmTile<128, 32, 64, 4, 1, 3, 3>;
using Tile64x64 = GemmTile<64, 64, 64, 2, 2, 3, 4>;
using Tile32x64 = GemmTile<32, 64, 64, 2, 2, 4, 4>;
