/* A caller in C11: one token of one head through the whole C interface. S = beta k v with k = 1, so
 * o = scale q S = 2 * 3 * (0.5 * 4) = 12. Compiled as C to show that the header is C. */
#include <stdlib.h>
#include <string.h>

#include "deltaworks/c_api.h"

static dw_tensor dense(void* data, int32_t dtype, int32_t ndim, int64_t size) {
  dw_tensor x;
  memset(&x, 0, sizeof x);
  x.data = data;
  x.present = 1;
  x.dtype = dtype;
  x.device_type = DW_CPU;
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
  dw_call call;
  memset(&call, 0, sizeof call);
  call.struct_size = sizeof call;
  call.op = DW_GATED_DELTA_NET;
  call.pass = DW_FORWARD;
  call.flags = DW_HAS_SCALE;
  call.scale = 2;
  call.tensors[DW_Q] = dense(&q, DW_FLOAT32, 3, 1);
  call.tensors[DW_K] = dense(&k, DW_FLOAT32, 3, 1);
  call.tensors[DW_V] = dense(&v, DW_FLOAT32, 3, 1);
  call.tensors[DW_G] = dense(&g, DW_FLOAT32, 2, 1);
  call.tensors[DW_BETA] = dense(&beta, DW_FLOAT32, 2, 1);
  call.tensors[DW_CU_SEQLENS] = dense(cu_seqlens, DW_INT32, 1, 2);
  call.tensors[DW_O] = dense(&o, DW_FLOAT32, 3, 1);

  dw_plan* plan = NULL;
  if (dw_check(&call) != 0 || dw_plan_find(&call, &plan) != 0) return -1;
  void* workspace = malloc(dw_plan_workspace_bytes(plan) + 1);
  const dw_status status = dw_plan_execute(plan, &call, workspace, NULL);
  free(workspace);
  dw_plan_release(plan);
  return status == 0 ? o : -1;
}
