// All kernels for one instruction set; compiled once for each, with OCTAVO_ISA naming it.
#include "attention.h"
#include "decoder.h"
#include "embedding.h"
#include "linear.h"
#include "model.h"
#include "rows.h"
#include "select.h"
#include "write.h"

#define QUOTED(name) #name
#define NAME_OF(name) QUOTED(name)

namespace OCTAVO_ISA {

extern const Kernels kernels;
const Kernels kernels = {NAME_OF(OCTAVO_ISA), attention, linear, embedding, add_rms_norm, silu_mul, write, top_k, decoder,
                         model};

}  // namespace OCTAVO_ISA
