#include "dynconv_data.h"

#include <math.h>

static float *floats_new(test_buffer *buffer, int64_t n) {
  *buffer = test_buffer_new((size_t)n * sizeof(float), sizeof(float));
  return (float *)(void *)buffer->data;
}

static float *random_floats_new(test_buffer *buffer, int64_t n, float magnitude, test_random *random) {
  float *values = floats_new(buffer, n);
  for (int64_t i = 0; i < n; ++i) {
    values[i] = test_random_float(random) * magnitude;
  }
  return values;
}

static int64_t n_groups(const dynconv_problem *p) {
  return p->shape.n_embd / p->shape.group_size;
}

int64_t dynconv_n_taps(const dynconv_problem *p, int64_t row) {
  return row < p->shape.kernel_size ? row + 1 : p->shape.kernel_size;
}

float *dynconv_base_of(const dynconv_problem *p) {
  return (float *)(void *)p->base_memory.data;
}

float *dynconv_delta_of(const dynconv_problem *p, int64_t row, int64_t tap) {
  return (float *)(void *)p->delta_memory.data + row * p->side.delta_stride + tap * n_groups(p);
}

float *dynconv_residual_of(const dynconv_problem *p) {
  return (float *)(void *)p->residual_memory.data;
}

float *dynconv_post_norm_of(const dynconv_problem *p) {
  return (float *)(void *)p->post_norm_memory.data;
}

static void fill_delta(dynconv_problem *p, int64_t n_floats, float magnitude, test_random *random) {
  float *delta = (float *)(void *)p->delta_memory.data;
  for (int64_t i = 0; i < n_floats; ++i) {
    delta[i] = NAN;
  }
  for (int64_t row = 0; row < p->n_rows; ++row) {
    for (int64_t tap = 0; tap < dynconv_n_taps(p, row); ++tap) {
      for (int64_t g = 0; g < n_groups(p); ++g) {
        dynconv_delta_of(p, row, tap)[g] = test_random_float(random) * magnitude;
      }
    }
  }
}

void dynconv_problem_new(dynconv_problem *made, const df2_dynconv_shape *shape, int64_t n_rows, bool has_side,
                         bool has_post_norm, test_random *random) {
  dynconv_problem *p = made;
  *p = (dynconv_problem){.shape = *shape, .n_rows = n_rows};
  const int64_t n = n_rows * shape->n_embd;
  const int64_t n_coefficients = shape->kernel_size * n_groups(p);
  p->x = random_floats_new(&p->x_memory, n, 4.0f, random);
  p->side.base = random_floats_new(&p->base_memory, shape->kernel_size * shape->n_embd, 1.0f, random);
  /* both sides' coefficients lie together, so rows are further apart than one side's */
  p->side.delta_stride = n_coefficients + (int64_t)test_random_below(random, 3) * n_coefficients;
  const int64_t n_delta = (n_rows - 1) * p->side.delta_stride + n_coefficients;
  p->side.delta = floats_new(&p->delta_memory, n_delta);
  fill_delta(p, n_delta, 0.5f, random);
  p->used_side = has_side ? &p->side : NULL;
  p->finish.residual = random_floats_new(&p->residual_memory, n, 2.0f, random);
  const float *post_norm = random_floats_new(&p->post_norm_memory, shape->n_embd, 1.5f, random);
  p->finish.post_norm = has_post_norm ? post_norm : NULL;
  p->finish.norm = random_floats_new(&p->norm_memory, shape->n_embd, 1.5f, random);
  p->finish.scale = test_random_below(random, 2) == 0 ? 1.0f : 0.3f;
  p->finish.norm_eps = test_random_below(random, 2) == 0 ? 1e-6f : 0.25f; /* the second shows in every value */
}

void dynconv_problem_free(dynconv_problem *p) {
  test_buffer *buffers[] = {&p->x_memory,        &p->base_memory,      &p->delta_memory,
                            &p->residual_memory, &p->post_norm_memory, &p->norm_memory};
  for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; ++i) {
    test_buffer_free(buffers[i]);
  }
}

static void make_whole(test_buffer *buffer, test_random *random) {
  float *values = (float *)(void *)buffer->data;
  for (size_t i = 0; i < buffer->size / sizeof(float); ++i) {
    if (!isnan(values[i])) {
      values[i] = (float)test_random_below(random, 201) - 100.0f;
    }
  }
}

void dynconv_make_whole(dynconv_problem *p, test_random *random) {
  make_whole(&p->x_memory, random);
  make_whole(&p->base_memory, random);
  make_whole(&p->delta_memory, random);
}
