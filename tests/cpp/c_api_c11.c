/* A caller in C11: one token of one head through the whole C interface. S = beta k v with k = 1, so
 * o = scale q S = 2 * 3 * (0.5 * 4) = 12. Compiled as C to show that the header is C. */
#include <stdlib.h>
#include <string.h>

#include "deltaworks/c_api.h"

static dw_tensor dense(int32_t port, int32_t dtype, int32_t ndim, int64_t size) {
  dw_tensor x;
  memset(&x, 0, sizeof x);
  x.port = port;
  x.dtype = dtype;
  x.ndim = ndim;
  for (int axis = 0; axis < ndim; ++axis) x.shape[axis] = x.stride[axis] = 1;
  x.shape[0] = size;
  return x;
}

/* Returns o, or -1 where a function fails. */
float deltaworks_run_from_c(void);
float deltaworks_run_from_c(void) {
  float q = 3, k = 1, v = 4, g = -1, beta = 0.5f, o = 0;
  int32_t cu_seqlens[2] = {0, 1};
  const dw_tensor tensors[] = {
      dense(DW_Q, DW_FLOAT32, 3, 1),    dense(DW_K, DW_FLOAT32, 3, 1),
      dense(DW_V, DW_FLOAT32, 3, 1),    dense(DW_G, DW_FLOAT32, 2, 1),
      dense(DW_BETA, DW_FLOAT32, 2, 1), dense(DW_CU_SEQLENS, DW_INT32, 1, 2),
      dense(DW_O, DW_FLOAT32, 3, 1),
  };
  dw_problem problem;
  memset(&problem, 0, sizeof problem);
  problem.struct_size = sizeof problem;
  problem.op = DW_GATED_DELTA_NET;
  problem.pass = DW_FORWARD;
  problem.flags = DW_HAS_SCALE;
  problem.scale = 2;
  problem.tensors = tensors;
  problem.tensor_count = sizeof tensors / sizeof *tensors;

  void* pointers[DW_PORT_COUNT] = {0};
  pointers[DW_Q] = &q;
  pointers[DW_K] = &k;
  pointers[DW_V] = &v;
  pointers[DW_G] = &g;
  pointers[DW_BETA] = &beta;
  pointers[DW_CU_SEQLENS] = cu_seqlens;
  pointers[DW_O] = &o;

  dw_plan* plan = NULL;
  if (dw_check(&problem) != DW_OK || dw_plan_find(&problem, &plan) != DW_OK) return -1;
  void* workspace = malloc(dw_plan_workspace_bytes(plan) + 1);
  const dw_status status = dw_plan_execute(plan, pointers, DW_PORT_COUNT, workspace, NULL);
  free(workspace);
  dw_plan_release(plan);
  return status == DW_OK ? o : -1;
}
