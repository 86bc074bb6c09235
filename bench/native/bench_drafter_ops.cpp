// The drafter's fused operations against the same operations as ggml's own nodes, and argmax against reading its
// input once. Sizes come from drafter files, values are random. Run it alone, or through
// `python -m bench kernels --op drafter`.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "bench_options.h"
#include "common/error.h"
#include "drafter/drafter.h"
#include "drafter/drafter_ops.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "machine_limits.h"
#include "ops/argmax/argmax.h"
#include "ops/common/cpu.h"
#include "ops/dynconv/dynconv.h"

namespace {

using df2::ConvWeights;
using df2::Drafter;
using df2::DrafterOps;

struct Options {
  std::vector<std::string> drafters;
  int32_t rows[MAX_LIST + 1] = {4, 8};
  int32_t n_threads = 2;
  int32_t n_repeats = 31;
  bool is_json = false;
};

struct Times {
  double best_us;
  double median_us;
};

struct Line {
  const char *op;
  int64_t size;  // numbers per row
  int64_t n_rows;
  const char *against;
  Times ours;
  Times theirs;
  bool is_right;
};

// A convolution is over before a thread has woken up: a graph holds this many of them.
constexpr int kCopies = 32;

template <typename Work>
Times measure(int32_t n_repeats, const Work &work) {
  std::vector<double> times;
  work();
  for (int32_t i = 0; i < n_repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  return {times.front(), times[times.size() / 2]};
}

// A graph of one form of an operation, on memory of its own.
class Graph {
 public:
  explicit Graph(int32_t n_threads) : backend_(ggml_backend_cpu_init()) {
    ggml_backend_cpu_set_n_threads(backend_.get(), n_threads);
    const size_t n = 1 << 14;
    context_.reset(ggml_init({ggml_tensor_overhead() * n + ggml_graph_overhead_custom(n, false), nullptr, true}));
    graph_ = ggml_new_graph_custom(context_.get(), n, false);
  }

  ggml_context *context() const { return context_.get(); }

  // Random numbers, the same in the other form's graph.
  ggml_tensor *input(int64_t ne0, int64_t ne1, float scale) {
    ggml_tensor *tensor = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, ne0, ne1);
    ggml_set_input(tensor);
    ggml_set_output(tensor);  // nor may it be overwritten: the graph runs again
    inputs_.emplace_back(tensor, scale);
    return tensor;
  }

  ggml_tensor *token() {
    token_ = ggml_new_tensor_1d(context_.get(), GGML_TYPE_I32, 1);
    ggml_set_input(token_);
    ggml_set_output(token_);
    return token_;
  }

  void add(ggml_tensor *result) {
    ggml_set_output(result->view_src != nullptr ? result->view_src : result);
    ggml_build_forward_expand(graph_, result);
  }

  Times run(int32_t n_repeats) {
    allocator_.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend_.get())));
    ggml_gallocr_alloc_graph(allocator_.get(), graph_);
    std::mt19937 generator(1);
    for (const auto &[tensor, scale] : inputs_) {
      std::normal_distribution<float> normal(0.0f, scale);
      std::generate_n(static_cast<float *>(tensor->data), ggml_nelements(tensor), [&] { return normal(generator); });
    }
    if (token_ != nullptr) {
      *static_cast<int32_t *>(token_->data) = 1;
    }
    return measure(n_repeats, [&] { ggml_backend_graph_compute(backend_.get(), graph_); });
  }

 private:
  ggml_backend_ptr backend_;
  ggml_context_ptr context_;
  ggml_gallocr_ptr allocator_;
  ggml_cgraph *graph_;
  std::vector<std::pair<ggml_tensor *, float>> inputs_;
  ggml_tensor *token_ = nullptr;
};

// What one form of an operation came to.
struct Outcome {
  Times times;
  std::vector<float> values;
};

void append(std::vector<float> *values, const ggml_tensor *tensor) {
  const auto *data = static_cast<const float *>(tensor->data);
  values->insert(values->end(), data, data + ggml_nelements(tensor));
}

Times divided(const Times &times, int n) {
  return {times.best_us / n, times.median_us / n};
}

using Run = Outcome (*)(const Drafter &, DrafterOps &, int64_t n_rows, const Options &);

ConvWeights conv_weights(const Drafter &drafter, Graph *graph, int64_t n_rows) {
  const df2::DrafterLayer &layer = drafter.weights().layers[0];
  return {layer.attn_conv_base, graph->input(layer.attn_conv_proj->ne[1], n_rows, 0.1f)};
}

Outcome run_convolve(const Drafter &drafter, DrafterOps &ops, int64_t n_rows, const Options &options) {
  Graph graph(options.n_threads);
  ggml_tensor *x = graph.input(drafter.params().n_embd, n_rows, 1.0f);
  const ConvWeights weights = conv_weights(drafter, &graph, n_rows);
  ggml_tensor *y = nullptr;
  for (int i = 0; i < kCopies; ++i) {
    y = ops.convolve_in(graph.context(), x, weights);
    graph.add(y);
  }
  Outcome outcome = {divided(graph.run(options.n_repeats), kCopies), {}};
  append(&outcome.values, y);
  return outcome;
}

Outcome run_finish(const Drafter &drafter, DrafterOps &ops, int64_t n_rows, const Options &options) {
  Graph graph(options.n_threads);
  ggml_tensor *x = graph.input(drafter.params().n_embd, n_rows, 1.0f);
  ggml_tensor *residual = graph.input(drafter.params().n_embd, n_rows, 1.0f);
  const ConvWeights weights = conv_weights(drafter, &graph, n_rows);
  df2::SublayerResult result = {};
  for (int i = 0; i < kCopies; ++i) {
    result =
        ops.finish(graph.context(), x, weights, {residual, nullptr, nullptr, drafter.weights().layers[0].ffn_norm});
    graph.add(result.sum);
    graph.add(result.normed);
  }
  Outcome outcome = {divided(graph.run(options.n_repeats), kCopies), {}};
  append(&outcome.values, result.sum);
  append(&outcome.values, result.normed);
  return outcome;
}

Outcome run_select(const Drafter &drafter, DrafterOps &ops, int64_t n_rows, const Options &options) {
  Graph graph(options.n_threads);
  const df2::DrafterParams &params = drafter.params();
  const int64_t n_choices = params.n_vocab_draft > 0 ? params.n_vocab_draft : params.n_vocab;
  ggml_tensor *logits = graph.input(n_choices, n_rows, 3.0f);
  ggml_tensor *gate = graph.input(params.selector_rank, n_rows, 1.0f);
  const df2::Selection result = ops.select(graph.context(), {logits, gate, graph.token(), nullptr});
  for (ggml_tensor *tensor : {result.path, result.candidates, result.scores, result.q, result.path_q}) {
    graph.add(tensor);
  }
  Outcome outcome = {graph.run(options.n_repeats), {}};
  append(&outcome.values, result.scores);
  append(&outcome.values, result.path_q);
  return outcome;
}

bool agree(const std::vector<float> &a, const std::vector<float> &b) {
  float largest = 0.0f;
  float difference = 0.0f;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    largest = std::max(largest, std::fabs(b[i]));
    difference = std::max(difference, std::fabs(a[i] - b[i]));
  }
  return a.size() == b.size() && difference <= 1e-4f * largest;
}

// The largest logits of n_rows positions, one thread after the other, against reading them once.
Line bench_argmax(int64_t n_vocab, int64_t n_rows, const Options &options) {
  std::vector<float> logits(static_cast<size_t>(n_vocab * n_rows));
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::generate(logits.begin(), logits.end(), [&] { return normal(generator); });
  const df2_argmax_kernel *kernel = df2_argmax_find(df2_cpu_allowed_features());
  std::vector<int64_t> found(static_cast<size_t>(n_rows));
  const Times ours = measure(options.n_repeats, [&] {
    for (int64_t row = 0; row < n_rows; ++row) {
      found[static_cast<size_t>(row)] = kernel->argmax(logits.data() + row * n_vocab, n_vocab);
    }
  });
  bool is_right = true;
  for (int64_t row = 0; row < n_rows; ++row) {
    const float *values = logits.data() + row * n_vocab;
    is_right &= found[static_cast<size_t>(row)] == std::max_element(values, values + n_vocab) - values;
  }
  const size_t n_bytes = logits.size() * sizeof(float);
  const double reading_us =
      1e6 * static_cast<double>(n_bytes) / limits_read_rate(logits.data(), n_bytes, 1, options.n_repeats);
  return {"argmax", n_vocab, n_rows, "reading once", ours, {reading_us, reading_us}, is_right};
}

Line bench_forms(const char *op, int64_t size, Run run, const Drafter &drafter, int64_t n_rows,
                 const Options &options) {
  const Outcome fused = run(drafter, *df2::fused_ops(drafter, *drafter.kernels()), n_rows, options);
  const Outcome plain = run(drafter, *df2::plain_ops(drafter), n_rows, options);
  return {op, size, n_rows, "ggml's nodes", fused.times, plain.times, agree(fused.values, plain.values)};
}

void print(const Line &line, const Options &options) {
  const char *isa = df2_dynconv_find(df2_cpu_allowed_features())->isa;
  const double ratio = line.theirs.best_us / line.ours.best_us;
  if (options.is_json) {
    std::printf(
        "{\"operation\": {\"type\": \"%s\", \"isa\": \"%s\", \"size\": %lld, \"n_threads\": %d, "
        "\"n_rows\": %lld, \"against\": \"%s\", \"best_us\": %.3f, \"median_us\": %.3f, "
        "\"their_best_us\": %.3f, \"their_median_us\": %.3f, \"times\": %.3f, \"is_right\": %s}}\n",
        line.op, isa, (long long)line.size, options.n_threads, (long long)line.n_rows, line.against, line.ours.best_us,
        line.ours.median_us, line.theirs.best_us, line.theirs.median_us, ratio, line.is_right ? "true" : "false");
  } else {
    std::printf("%-9s %-7s %7lld x %2lld  %9.2f us (%9.2f)  %-13s %10.2f us (%10.2f)  %7.2f x  %s\n", line.op, isa,
                (long long)line.size, (long long)line.n_rows, line.ours.best_us, line.ours.median_us, line.against,
                line.theirs.best_us, line.theirs.median_us, ratio, line.is_right ? "right" : "WRONG");
  }
  std::fflush(stdout);
}

bool bench_drafter(const std::string &path, const Options &options) {
  const Drafter drafter(df2::DrafterFile(path), nullptr, df2::find_drafter_kernels());
  const df2::DrafterParams &params = drafter.params();
  if (params.version != 2) {
    std::fprintf(stderr, "%s: a DFlash 1 drafter has none of these operations\n", path.c_str());
    return false;
  }
  const int64_t n_choices = params.n_vocab_draft > 0 ? params.n_vocab_draft : params.n_vocab;
  bool all_right = true;
  for (const int32_t *rows = options.rows; *rows != 0; ++rows) {
    for (const Line &line : {bench_forms("convolve", params.n_embd, run_convolve, drafter, *rows, options),
                             bench_forms("finish", params.n_embd, run_finish, drafter, *rows, options),
                             bench_forms("select", n_choices, run_select, drafter, *rows, options),
                             bench_argmax(params.n_vocab, *rows, options)}) {
      print(line, options);
      all_right &= line.is_right;
    }
  }
  return all_right;
}

bool read_options(int argc, char **argv, Options *options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const char *value = i + 1 < argc ? argv[i + 1] : "";
    bool is_known = true;
    if (name == "--json") {
      options->is_json = true;
      continue;
    } else if (name == "--drafter") {
      options->drafters.push_back(value);
    } else if (name == "--rows") {
      is_known = parse_list(options->rows, value, 64);
    } else if (name == "--threads") {
      is_known = parse_number(&options->n_threads, value, 64);
    } else if (name == "--repeats") {
      is_known = parse_number(&options->n_repeats, value, 100000);
    } else {
      is_known = false;
    }
    if (!is_known || ++i == argc) {
      return false;
    }
  }
  return !options->drafters.empty();
}

}  // namespace

int main(int argc, char **argv) {
  Options options;
  if (!read_options(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: bench_drafter_ops --drafter FILE.gguf [--drafter ...] [--rows 4,8] [--threads 2] "
                 "[--repeats 31] [--json]\n");
    return 2;
  }
  try {
    bool all_right = true;
    for (const std::string &path : options.drafters) {
      all_right &= bench_drafter(path, options);
    }
    return all_right ? 0 : 1;
  } catch (const df2::Error &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
