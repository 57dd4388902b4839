/* The C interface: the one door into the library, which the C++ headers, NumPy and the PyTorch
 * operators go through as well.
 *
 * A problem (dw_problem) is everything about an operator call but the data: the operation, the
 * pass, a description of every tensor, and the options. A plan is an engine's answer to a problem;
 * it executes on the pointers of a call, as often and in as many threads as wanted:
 *
 *   dw_tensor tensors[] = {{DW_Q, DW_FLOAT32, DW_CPU, 0, 3, 0, {T, H, K}, {H * K, K, 1}}, ...};
 *   dw_problem problem = {sizeof problem, DW_GATED_DELTA_NET, DW_FORWARD};
 *   problem.tensors = tensors;
 *   problem.tensor_count = sizeof tensors / sizeof *tensors;
 *   dw_plan* plan;
 *   if (dw_plan_find(&problem, &plan) != DW_OK) die(dw_last_error());
 *   void* pointers[DW_PORT_COUNT] = {0};
 *   pointers[DW_Q] = q; ...
 *   dw_plan_execute(plan, pointers, DW_PORT_COUNT, workspace, NULL);
 *   dw_plan_release(plan);
 *
 * Every function may be called from any thread. Functions that can fail return a status; the text
 * of the last failure on the calling thread is kept for dw_last_error. dw_problem begins with its
 * size and grows at its end, as enumerations do; the other structs keep their layout. Zero is the
 * default of every field.
 */
#ifndef DELTAWORKS_C_API_H_
#define DELTAWORKS_C_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DW_API __attribute__((visibility("default")))

typedef int32_t dw_status;
enum {
  DW_OK = 0,
  DW_INVALID_VALUE = 1, /* shapes, combinations, option values */
  DW_INVALID_TYPE = 2,  /* dtypes */
  DW_NOT_SUPPORTED = 3, /* valid, but no engine takes it */
  DW_INTERNAL = 4       /* a defect of the library or of the machine */
};

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
enum {
  DW_GATED_DELTA_NET = 0,
  DW_KIMI_DELTA_ATTENTION,
  DW_GATED_DELTA_NET_V2,
  DW_GATED_DELTA_PRODUCT,
  DW_MAMBA2,
  DW_OP_COUNT
};

/* Ports: the tensors of an operation. T tokens of the packed batch, N sequences, K and V the key
 * and value dimensions, H, HK and HV the heads of q, k and v, HO = max(H, HV). Shapes are those of
 * gated_delta_net where no operation is named. */
enum {
  DW_Q = 0,         /* [T, H, K]   */
  DW_K,             /* [T, HK, K]; gated_delta_product: [T n, HK, K] or [T, n, HK, K] */
  DW_V,             /* [T, HV, V]; gated_delta_product: [T n, HV, V] or [T, n, HV, V] */
  DW_G,             /* [T, HO]; kimi_delta_attention, gated_delta_net_v2: [T, HO, K] */
  DW_BETA,          /* [T, HO]; gated_delta_net_v2: [T, HO, K];
                       gated_delta_product: [T n, HO] or [T, n, HO] */
  DW_A_LOG,         /* [HO] */
  DW_DT_BIAS,       /* [HO]; kimi_delta_attention, gated_delta_net_v2: [HO, K] */
  DW_CU_SEQLENS,    /* [N+1] int32 or int64 */
  DW_INITIAL_STATE, /* [N, HO, V, K] */
  DW_STATE_INDICES, /* [N] int32: initial_state is a pool of any number of rows */
  DW_O,             /* [T, HO, V], written by the forward */
  DW_FINAL_STATE,   /* [N, HO, V, K], written by the forward */
  DW_DO,            /* gradients that flow into the backward */
  DW_D_FINAL_STATE,
  DW_DQ, /* gradients that the backward writes, each where its description is given */
  DW_DK,
  DW_DV,
  DW_DG,
  DW_DBETA,
  DW_DA_LOG,
  DW_DDT_BIAS,
  DW_D_INITIAL_STATE,
  DW_W, /* [T, HO, V]; gated_delta_net_v2 */
  DW_D, /* [H] or [H, P]; mamba2 */
  DW_Z, /* [T, H, P]; mamba2 */
  DW_DW,
  DW_DD,
  DW_DZ,
  DW_PORT_COUNT,
  /* mamba2 has names of its own for what the operations share. G groups of H heads. */
  DW_C = DW_Q,     /* [T, G, N_state] */
  DW_B = DW_K,     /* [T, G, N_state] */
  DW_X = DW_V,     /* [T, H, P] */
  DW_DT = DW_G,    /* [T, H] */
  DW_A = DW_A_LOG, /* [H] */
  DW_Y = DW_O,     /* [T, H, P]; states are [N, H, P, N_state] */
  DW_DY = DW_DO,
  DW_DC = DW_DQ,
  DW_DB = DW_DK,
  DW_DX = DW_DV,
  DW_DDT = DW_DG,
  DW_DA = DW_DA_LOG
};

enum { /* bits of dw_problem.flags */
       DW_L2NORM = 1,
       DW_BETA_SIGMOID = 2,
       DW_ALLOW_NEG_EIGVAL = 4,
       DW_SAFE_GATE = 8,
       DW_BATCH_INVARIANT = 16,
       DW_OUTPUT_FINAL_STATE = 32,
       DW_OVERWRITE_INITIAL_STATE = 64, /* final states go there; DW_FINAL_STATE is absent */
       DW_REQUIRES_GRADIENT = 128,      /* take an engine only if it has the backward as well */
       DW_HAS_SCALE = 256,              /* scale is read; else K^-0.5 */
       DW_HAS_CHECKPOINT_DTYPE = 512,   /* checkpoint_dtype is read; else the dtype of q */
       DW_BETA_GUARD = 1024,
       DW_HAS_GATE_LOWER_BOUND = 2048, /* gate_lower_bound is read; else -5 */
       DW_DT_LINEAR = 4096,            /* dt + dt_bias is the step without a softplus */
       DW_HAS_DT_MAX = 8192            /* dt_max is read; else infinity */
};

/* Where the elements of a tensor lie from its base pointer on; strides count elements, any are
 * taken, 0 included. Axes past the fourth are not described. */
typedef struct dw_tensor {
  int32_t port;
  int32_t dtype;
  int32_t device_type;
  int32_t device_index;
  int32_t ndim;
  int32_t reserved; /* 0 */
  int64_t shape[4];
  int64_t stride[4];
} dw_tensor;

/* One operator call without its data. */
typedef struct dw_problem {
  size_t struct_size; /* sizeof(dw_problem) of the caller */
  int32_t op;
  int32_t pass;
  uint32_t flags;
  int32_t threads;          /* upper bound on CPU threads; 0: the default; over 1024: 1024 */
  const dw_tensor* tensors; /* those that take part, each port at most once, in any order */
  size_t tensor_count;
  const char* gate_domain; /* "log", "linear"; NULL: "log" */
  const char* plan_name;   /* pins an engine ("gdn_cpu"); NULL or "": the first that accepts */
  double scale;            /* of the output; read with DW_HAS_SCALE */
  int64_t checkpoint_every_n_tokens;
  int32_t checkpoint_dtype; /* read with DW_HAS_CHECKPOINT_DTYPE */
  int32_t reserved;         /* 0 */
  const char* gate;         /* of safe_gate a channel: "sigmoid", "softplus"; NULL: "sigmoid" */
  double gate_lower_bound;  /* < 0; read with DW_HAS_GATE_LOWER_BOUND */
  int64_t num_householder;  /* sub-steps a token of gated_delta_product, n >= 1 */
  double dt_min;            /* of mamba2's step */
  double dt_max;            /* read with DW_HAS_DT_MAX */
} dw_problem;

/* The sizes that a valid problem's tensors agree on. */
typedef struct dw_dims {
  int64_t T, N, K, V, H, HK, HV, HO;
} dw_dims;

/* Problems. None of these reads data. */

/* Judges shapes, dtypes and combinations, before any engine is asked. `dims` may be NULL. */
DW_API dw_status dw_validate(const dw_problem* problem, dw_dims* dims);
/* Judges the problem as dw_plan_find does, without giving out the plan. */
DW_API dw_status dw_check(const dw_problem* problem);
/* Describes what the pass writes, contiguous, in port order: of the forward o, and final_state with
 * DW_OUTPUT_FINAL_STATE, but not with DW_OVERWRITE_INITIAL_STATE; of the backward the gradients
 * whose bits (1 << port) are set in `wanted`. Inputs that are not valid give outputs of some shape.
 * Writes at most `capacity` descriptions and their number to *count; DW_PORT_COUNT are always
 * enough. */
DW_API dw_status dw_describe_outputs(const dw_problem* problem, uint64_t wanted, dw_tensor* outputs,
                                     size_t capacity, size_t* count);
/* Reads a problem string such as "gdn:fwd:bf16:N4T8192H16HV32K128V128:l2norm" (docs/problems.md).
 * Fills `problem`, whose struct_size is set before, and the array `tensors` that it then points to
 * (DW_PORT_COUNT are enough). The strings in it live as long as the process. */
DW_API dw_status dw_problem_parse(const char* text, dw_problem* problem, dw_tensor* tensors,
                                  size_t capacity);
/* Prints a valid problem as the shortest such string. Writes at most `size` bytes with the closing
 * NUL, and the length that the whole text needs, NUL included, to *needed. */
DW_API dw_status dw_problem_format(const dw_problem* problem, char* text, size_t size,
                                   size_t* needed);

typedef struct dw_verdicts dw_verdicts;
/* Every engine's verdict on a valid problem, in the order they are asked. Release them with
 * dw_verdicts_release; the strings live as long as they. */
DW_API dw_status dw_explain(const dw_problem* problem, dw_verdicts** verdicts);
/* NULL is allowed. */
DW_API void dw_verdicts_release(dw_verdicts* verdicts);
/* Number of engines. */
DW_API size_t dw_verdicts_count(const dw_verdicts* verdicts);
/* Name of the plan that pins the engine: "gdn_cpu". */
DW_API const char* dw_verdict_plan(const dw_verdicts* verdicts, size_t engine);
/* Unmet conditions, each with what was found; none: the engine accepts. */
DW_API size_t dw_verdict_reason_count(const dw_verdicts* verdicts, size_t engine);
/* One of them, such as "q k v must be float64, got float32". */
DW_API const char* dw_verdict_reason(const dw_verdicts* verdicts, size_t engine, size_t reason);
/* The engine's whole support column, met or not. */
DW_API size_t dw_verdict_condition_count(const dw_verdicts* verdicts, size_t engine);
/* One of its conditions, such as "q k v must be float64". */
DW_API const char* dw_verdict_condition(const dw_verdicts* verdicts, size_t engine,
                                        size_t condition);
/* Of an engine that accepts; 0 and "" of one that does not. */
DW_API size_t dw_verdict_workspace_bytes(const dw_verdicts* verdicts, size_t engine);
/* How it would run the problem, for people: "AVX2, 2 threads, ...". */
DW_API const char* dw_verdict_configuration(const dw_verdicts* verdicts, size_t engine);

/* Plans. */
typedef struct dw_plan dw_plan;
/* The plan for a problem: of the pinned engine, of the one that DELTAWORKS_ENGINE names, or of the
 * first that accepts. Kept in a cache; release it with dw_plan_release. */
DW_API dw_status dw_plan_find(const dw_problem* problem, dw_plan** plan);
/* NULL is allowed. */
DW_API void dw_plan_release(dw_plan* plan);
DW_API const char* dw_plan_name(const dw_plan* plan);          /* "gdn_cpu" */
DW_API const char* dw_plan_configuration(const dw_plan* plan); /* "AVX2, 2 threads, ..." */
/* What an execution needs; may be 0. */
DW_API size_t dw_plan_workspace_bytes(const dw_plan* plan);
/* Runs the plan on the base pointers of its tensors, by port; `count` is the length of the array.
 * `workspace` holds dw_plan_workspace_bytes() of any content and alignment in the memory that the
 * tensors are in; one execution at a time may use it. Inputs are not written, but for an
 * initial_state with DW_OVERWRITE_INITIAL_STATE; what is written may overlap neither other inputs
 * nor one another. Allocates nothing. `stream` is a cudaStream_t of the tensors' card (NULL: the
 * default one), on which the call is enqueued; it is not read on the CPU. Fails before anything is
 * written if a pointer is missing or, on the CPU, cu_seqlens is malformed (on a card with
 * DELTAWORKS_CHECK). */
DW_API dw_status dw_plan_execute(const dw_plan* plan, void* const* pointers, size_t count,
                                 void* workspace, void* stream);
/* Seconds a call, the median of `calls`, of dw_plan_execute and of the kernels inside it, called
 * alone and by one thread on what an execution hands them: the rest is the library's own time. */
DW_API dw_status dw_plan_time(const dw_plan* plan, void* const* pointers, size_t count,
                              void* workspace, int64_t calls, double* execute_seconds,
                              double* kernel_seconds);

/* What happened. */

/* Text of the last failure on this thread; valid until the next failure on it. */
DW_API const char* dw_last_error(void);
/* Name of the rule that the last failure on this thread broke ("key_heads"), "" for a failure that
 * no rule of the operators is about. */
DW_API const char* dw_last_rule(void);
/* Name of the plan that executed last on this thread, "" before the first. */
DW_API const char* dw_last_plan(void);
/* Bytes of workspace of that plan. */
DW_API size_t dw_last_workspace_bytes(void);

/* What is there. */

/* Instruction set that the CPU engine uses ("AVX2") and its fp32 lanes; NULL where none fits (see
 * dw_last_error). The environment variable DELTAWORKS_ISA forces one. */
DW_API const char* dw_cpu_isa(int32_t* lanes);
/* Multiply-adds of fp32 lanes a second that `threads` threads (1..1024) reach together in that
 * instruction set, on registers alone and undisturbed by other work, measured over about `seconds`
 * (at most 60): the ceiling that benchmarks compare their times with. Where an instruction set has
 * no multiply-add, a multiply and an add count as one. */
DW_API dw_status dw_cpu_peak(int32_t threads, double seconds, double* lane_ops_per_second);
/* Threads that a problem with threads = 0 may use: OMP_NUM_THREADS, else the processors there. */
DW_API int32_t dw_default_threads(void);
DW_API const char* dw_version(void); /* "0.1.0" */
/* How the library was built: "GNU 12.2.0, RelWithDebInfo". */
DW_API const char* dw_build(void);

#ifdef __cplusplus
}
#endif
#endif /* DELTAWORKS_C_API_H_ */
