// The gated delta rule of one sequence and head, token by token in double, and its exact reverse:
//
//   S' = exp(g) S,   u = beta (v - S'^T k),   S = S' + k u^T,   o = scale S^T q
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

using Row = std::vector<double>;

struct Token {
  Row q, k, v;
  double g, beta;
  Row dO;             // flows into the backward
  Row o, dq, dk, dv;  // computed
  double dg, dbeta;   // computed
  Row decayed, u;     // S' [V, K] and u [V], kept for the backward
};

inline double dot(const double* a, const double* b, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// Returns the final state [V, K], from a state of zeros.
inline Row run_forward(std::vector<Token>& tokens, std::size_t K, std::size_t V, double scale) {
  Row S(V * K);
  for (Token& x : tokens) {
    for (double& s : S) s *= std::exp(x.g);
    x.decayed = S;
    x.u = x.o = Row(V);
    for (std::size_t j = 0; j < V; ++j) {
      double* s = &S[j * K];
      x.u[j] = x.beta * (x.v[j] - dot(s, x.k.data(), K));
      for (std::size_t i = 0; i < K; ++i) s[i] += x.k[i] * x.u[j];
      x.o[j] = scale * dot(s, x.q.data(), K);
    }
  }
  return S;
}

// After run_forward.
inline void run_backward(std::vector<Token>& tokens, std::size_t K, std::size_t V, double scale) {
  Row dS(V * K);
  for (auto token = tokens.rbegin(); token != tokens.rend(); ++token) {
    Token& x = *token;
    x.dq = x.dk = Row(K);
    x.dv = Row(V);
    x.dg = x.dbeta = 0;
    for (std::size_t j = 0; j < V; ++j) {
      double* ds = &dS[j * K];
      const double* decayed = &x.decayed[j * K];
      const double r = scale * x.dO[j];
      for (std::size_t i = 0; i < K; ++i) {
        ds[i] += r * x.q[i];
        x.dq[i] += r * (decayed[i] + x.k[i] * x.u[j]);
        x.dk[i] += x.u[j] * ds[i];
      }
      const double du = dot(ds, x.k.data(), K);
      x.dv[j] = x.beta * du;
      x.dbeta += du * (x.v[j] - dot(decayed, x.k.data(), K));
      for (std::size_t i = 0; i < K; ++i) {
        x.dk[i] -= x.dv[j] * decayed[i];
        ds[i] -= x.dv[j] * x.k[i];
        x.dg += ds[i] * decayed[i];
        ds[i] *= std::exp(x.g);
      }
    }
  }
}
