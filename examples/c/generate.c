/* Generates text from a prompt with a target and its drafter.
 *
 *   generate TARGET.gguf DRAFTER.gguf "Once upon a time" [N_TOKENS]
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* The prompt's tokens, for the caller to free. */
static int32_t *tokenize(const df2_target *target, const char *text, int32_t *n_tokens) {
  const int32_t n_bytes = (int32_t)strlen(text);
  check(df2_target_tokenize(target, text, n_bytes, true, true, NULL, 0, n_tokens));
  const int32_t n_ctx = (int32_t)llama_n_ctx(df2_target_context(target));
  if (*n_tokens > n_ctx) {
    fprintf(stderr,
            "error: the prompt has %d tokens and the context holds %d: shorten the prompt, or give "
            "df2_target_open options with a larger n_ctx\n",
            *n_tokens, n_ctx);
    exit(1);
  }
  int32_t *tokens = malloc(((size_t)*n_tokens + 1) * sizeof(*tokens)); /* one more: an empty prompt has none */
  if (tokens == NULL) {
    fprintf(stderr, "error: no memory for the prompt: shorten it\n");
    exit(1);
  }
  check(df2_target_tokenize(target, text, n_bytes, true, true, tokens, *n_tokens, n_tokens));
  return tokens;
}

static void print_token(const struct llama_vocab *vocab, int32_t token) {
  char piece[256];
  const int32_t length = llama_token_to_piece(vocab, token, piece, sizeof(piece), 0, false);
  fwrite(piece, 1, length > 0 ? (size_t)length : 0, stdout);
  fflush(stdout);
}

int main(int argc, char **argv) {
  int32_t n_left = argc > 4 ? read_count(argv[4]) : 64;
  if (argc < 4 || argc > 5 || n_left == 0) {
    fprintf(stderr, "usage: %s TARGET.gguf DRAFTER.gguf PROMPT [N_TOKENS]\nN_TOKENS is a number from 1 on (64)\n",
            argv[0]);
    return 2;
  }
  llama_log_set(no_log, NULL);

  df2_target *target = NULL;
  df2_drafter *drafter = NULL;
  df2_session *session = NULL;
  check(df2_target_open(&target, argv[1], NULL));
  check(df2_drafter_load(&drafter, argv[2], NULL));
  check(df2_session_create(&session, target, drafter, NULL));

  const struct llama_vocab *vocab = llama_model_get_vocab(llama_get_model(df2_target_context(target)));
  int32_t n_prompt = 0;
  int32_t *prompt = tokenize(target, argv[3], &n_prompt);
  check(df2_session_prefill(session, prompt, n_prompt));
  free(prompt);

  df2_step_result result = {0};
  while (n_left > 0 && !result.is_end) {
    int32_t tokens[DF2_MAX_DRAFT + 1];
    const int32_t room = n_left < DF2_MAX_DRAFT + 1 ? n_left : DF2_MAX_DRAFT + 1;
    check(df2_session_step(session, tokens, room, &result));
    for (int32_t i = 0; i < result.n_tokens; ++i) {
      print_token(vocab, tokens[i]);
    }
    n_left -= result.n_tokens;
  }

  df2_stats stats = {.struct_size = sizeof(stats)};
  check(df2_session_stats_get(session, &stats));
  const double seconds = (double)(stats.draft_us + stats.verify_us + stats.accept_us + stats.other_us) / 1e6;
  const double cycles = stats.n_cycles > 0 ? (double)stats.n_cycles : 1.0;
  printf("\n%.0f tok/s, acceptance length %.2f\n", (double)stats.n_generated / seconds,
         ((double)stats.n_accepted + cycles) / cycles);

  df2_session_free(session);
  df2_drafter_free(drafter);
  df2_target_free(target);
  return 0;
}
