#include "ops/dynconv/dynconv.h"

void df2_dynconv_f32_ref(float *y, const float *x, const float *base, const float *delta, int64_t delta_stride,
                         int64_t row_begin, int64_t row_end, int64_t n_embd, int64_t kernel_size, int64_t group_size) {
  const int64_t n_groups = n_embd / group_size;
  for (int64_t i = row_begin; i < row_end; ++i) {
    float *out = y + i * n_embd;
    for (int64_t c = 0; c < n_embd; ++c) {
      out[c] = 0.0f;
    }
    /* taps beyond the anchor would read the zero padding */
    const int64_t n_taps = i + 1 < kernel_size ? i + 1 : kernel_size;
    for (int64_t t = 0; t < n_taps; ++t) {
      const float *in = x + (i - t) * n_embd;
      const float *fixed = base + t * n_embd;
      const float *dynamic = delta + i * delta_stride + t * n_groups;
      for (int64_t g = 0; g < n_groups; ++g) {
        const float coefficient = dynamic[g];
        for (int64_t c = g * group_size; c < (g + 1) * group_size; ++c) {
          out[c] += (fixed[c] + coefficient) * in[c];
        }
      }
    }
  }
}
