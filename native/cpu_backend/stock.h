// What is left to ggml although there are kernels: models with kernels off, and everything until kernels are trusted.
#pragma once

struct ggml_tensor;

namespace df2 {

// While one exists, weights that its thread loads are not packed, and graphs that it computes are ggml's, but for
// packed weights. Not enabled: changes nothing.
class StockScope {
 public:
  explicit StockScope(bool enabled);
  ~StockScope();
  StockScope(const StockScope &) = delete;
  StockScope &operator=(const StockScope &) = delete;

 private:
  bool before_;
};

// While one exists, its thread uses kernels that nobody else does yet.
class KernelTestScope {
 public:
  KernelTestScope();
  ~KernelTestScope();
  KernelTestScope(const KernelTestScope &) = delete;
  KernelTestScope &operator=(const KernelTestScope &) = delete;
};

// The kernels have passed their test: all threads use them from now on.
void trust_kernels();

// Whether weights and graphs are ggml's on this thread now.
bool wants_stock();

// Leaves one node of a graph to ggml, whoever computes it. To be called before each time the graph is planned.
void leave_to_ggml(ggml_tensor *node);

}  // namespace df2
