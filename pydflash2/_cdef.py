"""libdflash2 for cffi. Made by scripts/generate_cdef.py: do not edit."""

CDEF = """
struct ggml_tensor;
struct llama_context;
struct llama_sampler;

typedef struct df2_taps df2_taps;
typedef struct df2_target df2_target;
typedef struct df2_drafter df2_drafter;
typedef struct df2_session df2_session;

#define DF2_MAX_DRAFT 64

#define DF2_MAX_TAPS 32

typedef enum df2_status {
  DF2_OK = 0,
  DF2_EINVAL = -1,
  DF2_ENOMEM = -2,
  DF2_EIO = -3,
  DF2_EFORMAT = -4,
  DF2_EMISMATCH = -5,
  DF2_EUNSUPPORTED = -6,
  DF2_ECONTEXT = -7,
  DF2_EREWIND = -8,
  DF2_EBACKEND = -9,
  DF2_EPOISONED = -10,
  DF2_EINTERNAL = -11
} df2_status;

const char *df2_version(void);

const char *df2_error_last(void);

const char *df2_status_name(int32_t status);

int32_t df2_threads_default(const char **reason);

typedef enum df2_log_level { DF2_LOG_INFO = 1, DF2_LOG_WARN = 2 } df2_log_level;

typedef void (*df2_log_callback)(int32_t level, const char *message, void *payload);

void df2_log_set(df2_log_callback callback, void *payload);

void df2_log_ignore(int level, const char *message, void *payload);

typedef enum df2_kernels {
  DF2_KERNELS_DEFAULT = 0,
  DF2_KERNELS_OFF = 1
} df2_kernels;

typedef enum df2_kernels_state {
  DF2_KERNELS_UNKNOWN = 0,
  DF2_KERNELS_ACTIVE = 1,
  DF2_KERNELS_LATE = 2,
  DF2_KERNELS_DISABLED = 3,
  DF2_KERNELS_UNSUPPORTED = 4,
  DF2_KERNELS_FAILED = 5
} df2_kernels_state;

int32_t df2_kernels_enable(void);

typedef struct df2_kernels_info {
  uint32_t struct_size;
  int32_t state;
  const char *isa;
  const char *note;
  uint64_t packed_bytes;
  uint64_t copied_bytes;
} df2_kernels_info;

int32_t df2_kernels_info_get(df2_kernels_info *info);

int32_t df2_taps_create(df2_taps **out);

void df2_taps_free(df2_taps *taps);

bool df2_taps_eval(struct ggml_tensor *tensor, bool ask, void *taps);

typedef enum df2_cache_type {
  DF2_CACHE_F16 = 0,
  DF2_CACHE_F32 = 1,
  DF2_CACHE_BF16 = 2,
  DF2_CACHE_Q8_0 = 3,
  DF2_CACHE_Q4_0 = 4,
  DF2_CACHE_Q4_1 = 5,
  DF2_CACHE_Q5_0 = 6,
  DF2_CACHE_Q5_1 = 7,
  DF2_CACHE_IQ4_NL = 8
} df2_cache_type;

typedef struct df2_target_options {
  uint32_t struct_size;
  int32_t n_ctx;
  int32_t n_batch;
  int32_t n_threads;
  int32_t kernels;
  uint64_t max_bytes;
  int32_t cache_type_k, cache_type_v;
  int32_t swa_full;
} df2_target_options;

int32_t df2_target_options_init(df2_target_options *options, size_t size);

int32_t df2_target_open(df2_target **out, const char *path, const df2_target_options *options);

int32_t df2_target_attach(df2_target **out, struct llama_context *context, df2_taps *taps);

struct llama_context *df2_target_context(const df2_target *target);

int32_t df2_target_tokenize(const df2_target *target, const char *text, int32_t n_bytes, bool add_special,
                                    bool parse_special, int32_t *tokens, int32_t capacity, int32_t *n_tokens);

void df2_target_free(df2_target *target);

typedef struct df2_drafter_options {
  uint32_t struct_size;
  int32_t version;
  int32_t kernels;
} df2_drafter_options;

int32_t df2_drafter_options_init(df2_drafter_options *options, size_t size);

typedef struct df2_drafter_info {
  uint32_t struct_size;
  int32_t version;
  int32_t n_layer;
  int32_t n_embd;
  int32_t n_vocab;
  int32_t n_head;
  int32_t n_head_kv;
  int32_t block_size;
  int32_t conv_kernel_size;
  int32_t conv_group_size;
  int32_t selector_rank;
  int32_t selector_top_k;
  int32_t window;
  int32_t n_taps;
  int32_t tap_layers[DF2_MAX_TAPS];
  int32_t mask_token;
  int32_t is_causal;
  uint64_t weights_bytes;
  uint64_t packed_bytes;
} df2_drafter_info;

int32_t df2_drafter_load(df2_drafter **out, const char *path, const df2_drafter_options *options);

int32_t df2_drafter_info_get(const df2_drafter *drafter, df2_drafter_info *info);

void df2_drafter_free(df2_drafter *drafter);

typedef struct df2_session_options {
  uint32_t struct_size;
  int32_t n_draft;
  int32_t window;
  int32_t cache_type;
  int32_t ignore_end;
  int32_t n_threads_draft;
  const char *profiles;

  int64_t checkpoint_bytes;
} df2_session_options;

int32_t df2_session_options_init(df2_session_options *options, size_t size);

int32_t df2_session_create(df2_session **out, df2_target *target, const df2_drafter *drafter,
                                   const df2_session_options *options);

void df2_session_free(df2_session *session);

int32_t df2_session_set_sampler(df2_session *session, struct llama_sampler *sampler);

int32_t df2_session_set_n_draft(df2_session *session, int32_t n_draft);

int32_t df2_session_prefill(df2_session *session, const int32_t *tokens, int32_t n_tokens);

typedef struct df2_step_result {
  int32_t n_tokens;
  int32_t n_drafted;
  int32_t n_accepted;
  int32_t is_end;
} df2_step_result;

int32_t df2_session_step(df2_session *session, int32_t *tokens, int32_t capacity, df2_step_result *result);

int32_t df2_session_rewind(df2_session *session, int32_t n_tokens);

void df2_session_save_profile(df2_session *session);

int32_t df2_session_n_tokens(const df2_session *session);

typedef struct df2_draft_options {
  uint32_t struct_size;
  int32_t n_draft;
  float temperature;
  uint32_t reserved;
  const float *uniforms;
} df2_draft_options;

int32_t df2_draft_options_init(df2_draft_options *options, size_t size);

typedef struct df2_draft {
  uint32_t struct_size;
  int32_t n_draft;
  int32_t n_candidates;
  int32_t n_embd;
  int32_t n_vocab;
  const int32_t *tokens;
  const int32_t *candidates;
  const float *scores;
  const float *q;
  const float *tokens_q;
  const float *hidden;
  const float *logits;
} df2_draft;

int32_t df2_session_draft(df2_session *session, const df2_draft_options *options, df2_draft *draft);

typedef struct df2_stats {
  uint32_t struct_size;
  uint32_t reserved;

  uint64_t prefill_us;
  uint64_t draft_us;
  uint64_t verify_us;
  uint64_t accept_us;
  uint64_t other_us;
  uint64_t n_prefill;
  uint64_t n_cycles;
  uint64_t n_generated;
  uint64_t n_drafted;
  uint64_t n_accepted;
  uint64_t drafted_at[DF2_MAX_DRAFT];
  uint64_t accepted_at[DF2_MAX_DRAFT];

  uint64_t drafter_cache_bytes;
  uint64_t drafter_compute_bytes;
  uint64_t drafter_weights_bytes;
  uint64_t drafter_packed_bytes;
  uint64_t target_packed_bytes;
  uint64_t target_copied_bytes;
  uint64_t n_replayed;
  uint64_t target_rewind_bytes;

  uint64_t n_checkpoints;
  uint64_t checkpoint_bytes;
  uint64_t n_restored;
  uint64_t n_recomputed;
} df2_stats;

int32_t df2_session_stats_get(const df2_session *session, df2_stats *stats);

void df2_session_stats_reset(df2_session *session);

typedef struct df2_plan {
  uint32_t struct_size;
  int32_t n_ctx;
  int32_t kernels;
  int32_t reserved;
  uint64_t available_bytes;
  uint64_t total_bytes;

  uint64_t target_mapped_bytes;
  uint64_t drafter_mapped_bytes;
  uint64_t target_packed_bytes;
  uint64_t target_copied_bytes;
  uint64_t attention_bytes;
  uint64_t window_bytes;
  uint64_t state_bytes;
  uint64_t rewind_bytes;
  uint64_t compute_bytes;
  uint64_t work_bytes;
  uint64_t logits_bytes;
  uint64_t drafter_packed_bytes;
  uint64_t drafter_cache_bytes;
  uint64_t drafter_compute_bytes;
  uint64_t drafter_features_bytes;
  uint64_t checkpoint_bytes;
  const char *note;
  const char *problem;
} df2_plan;

int32_t df2_target_plan(df2_plan *plan, const char *target_path, const df2_target_options *target_options,
                                const char *drafter_path, const df2_drafter_options *drafter_options,
                                const df2_session_options *session_options);
"""
