/* A user's program in C11: one head of Gated DeltaNet, described by a problem string, against a
 * token loop in double. Exits with 1 if anything is off. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deltaworks/c_api.h"

enum { T = 20, K = 4, V = 3 };

static float q[T][K], k[T][K], v[T][V], g[T], beta[T], o[T][V];

static void require(dw_status status, const char* what) {
  if (status == DW_OK) return;
  fprintf(stderr, "%s: %s\n", what, dw_last_error());
  exit(1);
}

static void make_data(void) {
  for (int t = 0; t < T; ++t) {
    for (int i = 0; i < K; ++i) q[t][i] = (float)sin(t + 2 * i);
    for (int i = 0; i < K; ++i) k[t][i] = (float)cos(3 * t + i) / 2;
    for (int j = 0; j < V; ++j) v[t][j] = (float)sin(5 * t + j);
    g[t] = -0.1f * (float)(t % 3);
    beta[t] = 0.25f * (float)(t % 4 + 1);
  }
}

/* Largest distance of o from S^T q, with S' = exp(g) S, S = S' + beta k (v - S'^T k)^T. */
static double error_of_o(void) {
  double S[V][K] = {{0}}, largest = 0;
  for (int t = 0; t < T; ++t) {
    for (int j = 0; j < V; ++j) {
      double read = 0, out = 0;
      for (int i = 0; i < K; ++i) read += (S[j][i] *= exp(g[t])) * k[t][i];
      for (int i = 0; i < K; ++i) S[j][i] += k[t][i] * beta[t] * (v[t][j] - read);
      for (int i = 0; i < K; ++i) out += S[j][i] * q[t][i];
      largest = fmax(largest, fabs(out - o[t][j]));
    }
  }
  return largest;
}

int main(void) {
  make_data();
  dw_problem problem;
  dw_tensor tensors[DW_PORT_COUNT];
  memset(&problem, 0, sizeof problem);
  problem.struct_size = sizeof problem;
  require(dw_problem_parse("gdn:fwd:fp32:N1T20H1K4V3:scale=1", &problem, tensors, DW_PORT_COUNT),
          "dw_problem_parse");

  dw_plan* plan;
  require(dw_plan_find(&problem, &plan), "dw_plan_find");
  int32_t cu_seqlens[2] = {0, T};
  void* pointers[DW_PORT_COUNT] = {0};
  pointers[DW_Q] = q;
  pointers[DW_K] = k;
  pointers[DW_V] = v;
  pointers[DW_G] = g;
  pointers[DW_BETA] = beta;
  pointers[DW_CU_SEQLENS] = cu_seqlens;
  pointers[DW_O] = o;
  void* workspace = malloc(dw_plan_workspace_bytes(plan) + 1);
  require(dw_plan_execute(plan, pointers, DW_PORT_COUNT, workspace, NULL), "dw_plan_execute");
  const double error = error_of_o();
  printf("deltaworks %s, %s: largest error %.1e\n", dw_version(), dw_plan_name(plan), error);
  free(workspace);
  dw_plan_release(plan);

  const dw_status refused = dw_problem_parse("nothing", &problem, tensors, DW_PORT_COUNT);
  printf("a string that is none: %s\n", dw_last_error());
  return error < 1e-5 && refused == DW_INVALID_VALUE && dw_last_error()[0] != '\0' ? 0 : 1;
}
