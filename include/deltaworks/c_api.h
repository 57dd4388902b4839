/* The C interface: what every language binding goes through. A call is described by one struct of
 * plain values; a plan made from it executes on the pointers of such a struct. Functions return a
 * status; the text of the last failure on the calling thread is kept for dw_last_error. */
#ifndef DELTAWORKS_C_API_H_
#define DELTAWORKS_C_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DW_API __attribute__((visibility("default")))

typedef int32_t dw_status; /* 0 ok, 1 value, 2 type, 3 not supported, 4 internal */

enum {
  DW_FLOAT32 = 0,
  DW_BFLOAT16,
  DW_FLOAT16,
  DW_FLOAT64,
  DW_INT32,
  DW_INT64,
  /* No tensor may have these; they are here to be named in errors. */
  DW_BOOL,
  DW_UINT8,
  DW_INT8,
  DW_INT16,
  DW_COMPLEX64,
  DW_OTHER
};
enum { DW_CPU = 0, DW_CUDA = 1, DW_OTHER_DEVICE = 2 };
enum { DW_FORWARD = 0, DW_BACKWARD = 1 };
enum { DW_GATED_DELTA_NET = 0 };

enum {
  DW_Q = 0,
  DW_K,
  DW_V,
  DW_G,
  DW_BETA,
  DW_A_LOG,
  DW_DT_BIAS,
  DW_CU_SEQLENS,
  DW_INITIAL_STATE,
  DW_O,
  DW_FINAL_STATE,
  DW_DO,
  DW_D_FINAL_STATE,
  DW_DQ,
  DW_DK,
  DW_DV,
  DW_DG,
  DW_DBETA,
  DW_DA_LOG,
  DW_DDT_BIAS,
  DW_D_INITIAL_STATE,
  DW_PORT_COUNT
};

enum { /* bits of dw_call.flags */
       DW_L2NORM = 1,
       DW_BETA_SIGMOID = 2,
       DW_ALLOW_NEG_EIGVAL = 4,
       DW_SAFE_GATE = 8,
       DW_BATCH_INVARIANT = 16,
       DW_OUTPUT_FINAL_STATE = 32,
       DW_OVERWRITE_INITIAL_STATE = 64,
       DW_REQUIRES_GRADIENT = 128,
       DW_HAS_SCALE = 256,
       DW_HAS_STATE_INDICES = 512
};

typedef struct dw_tensor { /* strides in elements */
  void* data;
  int32_t present;
  int32_t dtype;
  int32_t device_type;
  int32_t device_index;
  int32_t ndim; /* axes past the fourth are not described */
  int32_t reserved;
  int64_t shape[4];
  int64_t stride[4];
} dw_tensor;

typedef struct dw_call {
  size_t struct_size; /* sizeof(dw_call) of the caller */
  int32_t op;
  int32_t pass;
  uint32_t flags;
  int32_t threads; /* upper bound on CPU threads, 0: default */
  double scale;    /* read with DW_HAS_SCALE */
  int64_t checkpoint_every_n_tokens;
  const char* gate_domain; /* "log", "linear"; NULL: "log" */
  const char* plan_name;   /* NULL or "": the first engine that accepts */
  dw_tensor tensors[DW_PORT_COUNT];
} dw_call;

typedef struct dw_plan dw_plan;

/* Judges the call: shapes, dtypes, combinations, and that some engine takes it. Reads no data. */
DW_API dw_status dw_check(const dw_call* call);
/* A plan for the call, kept in a cache; release it with dw_plan_release. Reads no data. */
DW_API dw_status dw_plan_find(const dw_call* call, dw_plan** plan);
DW_API void dw_plan_release(dw_plan* plan);
DW_API size_t dw_plan_workspace_bytes(const dw_plan* plan);
DW_API const char* dw_plan_name(const dw_plan* plan);
/* Runs the plan on the data pointers of `call`, which must be the call the plan was found for. */
DW_API dw_status dw_plan_execute(const dw_plan* plan, const dw_call* call, void* workspace,
                                 void* stream);

/* Text of the last failure on this thread; valid until the next failure on it. */
DW_API const char* dw_last_error(void);
/* Every engine's verdict on the call, one line each ("gdn_cpu: accepts"). Writes at most `size`
 * bytes with the closing NUL, and the length that the whole text needs to *needed. */
DW_API dw_status dw_explain(const dw_call* call, char* text, size_t size, size_t* needed);
/* Name of the plan that executed last on this thread, "" before the first. */
DW_API const char* dw_last_plan(void);
/* Workspace of that plan. */
DW_API size_t dw_last_workspace_bytes(void);
/* Instruction set that the CPU engine uses ("AVX2") and its fp32 lanes; NULL where none fits (see
 * dw_last_error). The environment variable DELTAWORKS_ISA forces one. */
DW_API const char* dw_cpu_isa(int32_t* lanes);
DW_API const char* dw_version(void);

#ifdef __cplusplus
}
#endif
#endif /* DELTAWORKS_C_API_H_ */
