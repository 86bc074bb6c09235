/* Adds drafting to a program that already has a llama.cpp context of its own. Prints token ids.
 *
 *   attach TARGET.gguf DRAFTER.gguf [N_TOKENS]
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "dflash2.h"
#include "llama.h"

static void check(int32_t status) {
  if (status != DF2_OK) {
    fprintf(stderr, "error: %s (%s)\n", df2_error_last(), df2_status_name(status));
    exit(1);
  }
}

/* A number of tokens, at least one; 0 for any other text. */
static int32_t read_count(const char *text) {
  char *end = NULL;
  errno = 0;
  const long value = strtol(text, &end, 10);
  return errno == 0 && end != text && *end == '\0' && value >= 1 && value <= INT32_MAX ? (int32_t)value : 0;
}

static void no_log(enum ggml_log_level level, const char *text, void *payload) {
  (void)level, (void)text, (void)payload;
}

int main(int argc, char **argv) {
  int32_t n_left = argc > 3 ? read_count(argv[3]) : 16;
  if (argc < 3 || argc > 4 || n_left == 0) {
    fprintf(stderr, "usage: %s TARGET.gguf DRAFTER.gguf [N_TOKENS]\nN_TOKENS is a number from 1 on (16)\n", argv[0]);
    return 2;
  }
  llama_log_set(no_log, NULL);
  llama_backend_init();

  check(df2_kernels_enable()); /* before the first model is loaded */
  struct llama_model_params model_params = llama_model_default_params();
  model_params.n_gpu_layers = 0;
  struct llama_model *model = llama_model_load_from_file(argv[1], model_params);
  if (model == NULL) {
    fprintf(stderr, "error: cannot load %s\n", argv[1]);
    return 1;
  }
  struct llama_context_params params = llama_context_default_params();
  params.n_ctx = 512;
  struct llama_context *context = llama_init_from_model(model, params);
  if (context == NULL) {
    fprintf(stderr, "error: cannot create a context for %s\n", argv[1]);
    return 1;
  }

  df2_target *target = NULL;
  df2_drafter *drafter = NULL;
  df2_session *session = NULL;
  check(df2_target_attach(&target, context, NULL));
  check(df2_drafter_load(&drafter, argv[2], NULL));
  check(df2_session_create(&session, target, drafter, NULL));

  const int32_t prompt[] = {1, 20, 30, 40, 50};
  check(df2_session_prefill(session, prompt, 5));
  df2_step_result result = {0};
  while (n_left > 0 && !result.is_end) {
    int32_t tokens[DF2_MAX_DRAFT + 1];
    const int32_t room = n_left < DF2_MAX_DRAFT + 1 ? n_left : DF2_MAX_DRAFT + 1;
    check(df2_session_step(session, tokens, room, &result));
    for (int32_t i = 0; i < result.n_tokens; ++i) {
      printf("%d ", tokens[i]);
    }
    n_left -= result.n_tokens;
  }
  printf("\n");

  df2_session_free(session);
  df2_drafter_free(drafter);
  df2_target_free(target);
  llama_free(context);
  llama_model_free(model);
  return 0;
}
