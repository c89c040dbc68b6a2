/* Names of our keys in other programs, and of keys that were removed: for what is said of an unknown key. */
#include "core/config/value.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

static const struct {
    const char *words, *key; /* words: separated by blanks */
} synonyms[] = {
    {"learning_rate base_lr peak_lr blr", "optim.lr"},
    {"lr_min end_lr final_lr min_learning_rate eta_min", "optim.min_lr"},
    {"lr_scheduler lr_scheduler_type scheduler sched lr_schedule", "optim.schedule"},
    {"warmup_proportion warmup_fraction warmup_share", "optim.warmup_ratio"},
    {"warmup warmup_iters num_warmup_steps warmup_iterations", "optim.warmup_steps"},
    {"wd decay", "optim.weight_decay"},
    {"optimizer optimiser opt", "optim.name"},
    {"adam_beta1", "optim.beta1"},
    {"adam_beta2", "optim.beta2"},
    {"epsilon adam_epsilon opt_eps", "optim.eps"},
    {"beta2_decay", "optim.decay_rate"},
    {"clip_grad grad_clip gradient_clipping clip_norm max_norm", "optim.clip_grad_norm"},
    {"epoch num_epochs num_train_epochs max_epochs", "train.epochs"},
    {"max_steps num_steps total_steps iterations max_iters num_iterations", "train.steps"},
    {"bs batch per_device_train_batch_size micro_batch_size_per_gpu batch_size_per_gpu", "train.batch_size"},
    {"micro_batch_size gradient_accumulation_steps accum_steps grad_accum accum_freq", "train.micro_batch"},
    {"global_batch_size total_batch_size train_batch_size", "train.global_batch"},
    {"random_seed manual_seed", "train.seed"},
    {"amp mixed_precision fp16 bf16", "train.precision"},
    {"gradient_checkpointing activation_checkpointing grad_checkpointing checkpoint_activations",
     "train.recompute"},
    {"save_steps save_every save_interval save_freq checkpoint_interval", "train.checkpoint_steps"},
    {"save_total_limit keep_checkpoints keep_last", "train.checkpoint_keep"},
    {"logging_steps log_interval log_freq print_freq", "train.log_every"},
    {"num_workers workers dataloader_num_workers", "data.workers"},
    {"aug_repeats repeated_aug num_crops crops_number n_crops", "data.crops"},
    {"local_crops_number", "data.local_crops"},
    {"img_size image_res resolution input_size crop_size", "data.image_size"},
    {"data_path dataset data_dir dataset_path train_data images image_dir", "data.root"},
    {"teacher teacher_path teacher_checkpoint teacher_weights", "model_t.weight"},
    {"student student_path pretrained student_checkpoint student_weights", "model_s.weight"},
    {"seq_length seq_len sequence_length max_length max_seq_len max_seq_length block_size n_ctx n_positions",
     "model_s.context"},
    {"vocab_size n_vocab padded_vocab_size", "model_s.vocabulary"},
    {"num_key_value_heads n_kv_heads num_query_groups", "model_s.kv_heads"},
    {"tie_word_embeddings share_embeddings_and_output_weights", "model_s.tied"},
    {"sliding_window", "model_s.window"},
    {"eval_interval eval_freq evaluation_steps", "train.eval_steps"},
    {"loss criterion", "loss.type"},
    {"gpus gpu devices cuda_visible_devices local_rank", "device.cards"},
    {"zero_stage fsdp sharding sharded", "dist.shard"},
    {"pipeline_parallel_size pipeline_model_parallel_size pipeline_stages num_stages pp_size pp",
     "dist.pipeline"},
    {"tensor_parallel_size tensor_model_parallel_size model_parallel_size tp_size tp", "dist.tensor"},
    {"r lora_r lora_rank peft", "lora.rank"},
    {"lora_alpha", "lora.alpha"},
    {"target_modules lora_targets lora_target_modules", "lora.targets"},
    {"output_dir out_dir save_dir log_dir", "run.dir"},
    {"run_name experiment exp_name", "run.name"},
};

/* Whether `word`, of n bytes, is `text`. */
static bool is(const char *text, const char *word, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (tolower((unsigned char)(text[i] == '-' ? '_' : text[i])) != word[i]) return false;
    return text[n] == 0;
}

const char *config_synonym(const char *word)
{
    const char *dot = strrchr(word, '.'), *leaf = dot ? dot + 1 : word;
    for (size_t i = 0; i < sizeof synonyms / sizeof *synonyms; i++)
        for (const char *p = synonyms[i].words; *p; p += strspn(p, " ")) {
            size_t n = strcspn(p, " ");
            if (is(leaf, p, n)) return synonyms[i].key;
            p += n;
        }
    return NULL;
}
