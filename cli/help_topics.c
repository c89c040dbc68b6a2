/* The topics of 'meopt help': see help_topics.h. */
#include "cli/help_topics.h"
#include "core/base/translate.h"

#include <string.h>

const struct help_topic help_topics[] = {
    {"memory", N_("what needs card memory, and which settings save it"),
     N_("Where the memory of a card goes, and what it would be without MEOpt:\n"
        "  meopt plan CONFIG\n"
        "The settings that fit a size, fastest first, and the same chosen at the start:\n"
        "  meopt plan CONFIG --fit 16GiB\n"
        "  meopt train CONFIG train.memory=16GiB\n"
        "One change at a time, with its price in computing:\n"
        "  meopt plan CONFIG --what-if\n"
        "\n"
        "Settings, by what they save:\n"
        "  activations     train.recompute: block; train.save_activations: 8bit; train.micro_batch\n"
        "  weights         model.place: streamed; dist.shard: parameters; dist.pipeline; dist.tensor\n"
        "  gradients       optim.gradients: release; train.rounds: breadth\n"
        "  optimizer       optim.preset; optim.offload: host or nvme; dist.shard: optimizer\n"
        "  teacher         train.cache_teacher; model_t.place: streamed\n"
        "  fine-tuning     lora.rank; model.freeze\n"
        "\n"
        "More: man meopt-plan, man meopt.yaml\n")},
    {"ranks", N_("several cards, several hosts, Slurm"),
     N_("One rank per card of this host, or ranks on the CPU:\n"
        "  meopt train CONFIG --cards 0,1,2,3\n"
        "  meopt train CONFIG --workers 2\n"
        "Ranks of a launcher, on any number of hosts that share the directory of the run:\n"
        "  mpirun -np 8 meopt train CONFIG\n"
        "  srun meopt train CONFIG\n"
        "A job of Slurm that saves before its time limit and resumes:\n"
        "  meopt sbatch CONFIG --cards 4 -o job.sh\n"
        "\n"
        "train.global_batch keeps the images of a step, and its bits, with any number of ranks.\n"
        "dist.shard divides optimizer states or weights among ranks, dist.pipeline the blocks,\n"
        "dist.tensor the slices of each block.\n"
        "Which form fits N ranks, with the links of this cluster:\n"
        "  mpirun -np 8 meopt bench ranks\n"
        "  meopt plan CONFIG --advise --ranks 8 --nodes 2\n"
        "\n"
        "More: man meopt-train, man meopt-sbatch\n")},
    {"resume", N_("stop, resume, change and branch a run"),
     N_("Stop after the current step and save; save and continue:\n"
        "  meopt stop RUN\n"
        "  meopt checkpoint RUN\n"
        "Resume, bit-identical, also after kill -9 or on other ranks:\n"
        "  meopt train --resume RUN\n"
        "More steps, other values, an earlier checkpoint:\n"
        "  meopt train --resume RUN --steps +500\n"
        "  meopt train --resume RUN optim.lr=1.0e-5\n"
        "  meopt train --resume RUN --at 400\n"
        "A new run with the weights of another one:\n"
        "  meopt train CONFIG --from RUN --checkpoint best\n"
        "\n"
        "A resume refuses what would change the result in silence, such as other images or another\n"
        "teacher; --force-resume KEY accepts it, and events.jsonl records it.\n"
        "train.checkpoint_steps and train.checkpoint_keep set how often and how many are saved.\n"
        "\n"
        "More: man meopt-train, man meopt-run\n")},
    {"data", N_("images, labels and token files"),
     N_("Images: a directory, tar archives of webdataset, CIFAR. Classes: directories, data.labels "
        "FILE.csv,\n"
        "KEY.cls. Texts: token files, from text or .jsonl by\n"
        "  meopt tokenize FILE --tokenizer MODEL -o NAME\n"
        "What is read, what is left out, and each bad image:\n"
        "  meopt config check --data CONFIG\n"
        "\n"
        "train/ next to val/ is trained on alone, and what data.val names is not. data.include and\n"
        "data.exclude choose others. Class names are numbered as the checkpoint's id2label does.\n"
        "\n"
        "More: IMAGES, CLASSES and TOKENS in man meopt.yaml, man meopt-tokenize\n")},
    {"lora", N_("fine-tuning of a language model: adapters, conversations"),
     N_("A model from a hub, conversations as tokens, adapters (LoRA), an answer, the adapter for PEFT:\n"
        "  meopt fetch hf:Qwen/Qwen3-0.6B\n"
        "  meopt tokenize chats.jsonl --tokenizer hf:Qwen/Qwen3-0.6B -o chats\n"
        "  meopt config new chat_lora chat.yaml\n"
        "  meopt config set chat.yaml model.weight=hf:Qwen/Qwen3-0.6B\n"
        "  meopt train chat.yaml --name chat\n"
        "  meopt generate chat --chat \"What is MEOpt?\"\n"
        "  meopt generate chat --chat\n"
        "  meopt export chat\n"
        "The merged model for transformers:\n"
        "  meopt export chat --merge --out my-model\n"
        "\n"
        "lora.rank, lora.alpha and lora.targets are PEFT's r, lora_alpha and target_modules. Without\n"
        "optim.lr the learning rate is 2.0e-4. model.context is the tokens of a sample.\n"
        "\n"
        "More: man meopt-tokenize, man meopt-generate, man meopt-export\n")},
    {"cards", N_("AMD, Hygon and NVIDIA cards"),
     N_("What this machine has, and what is missing:\n"
        "  meopt doctor\n"
        "The driver, RCCL, NCCL and libraries for products are found when the program runs: ROCm,\n"
        "DTK (source its env.sh first) or CUDA. No card is needed to plan:\n"
        "  meopt plan CONFIG --card k100\n"
        "  meopt plan --card list\n"
        "Choose cards by number; *_VISIBLE_DEVICES hide cards:\n"
        "  meopt train CONFIG --cards 0,2\n"
        "  meopt train CONFIG device.type=cpu\n"
        "Timings of a card, and a report that can be sent:\n"
        "  meopt bench train CONFIG --profile\n"
        "  meopt doctor CONFIG --share report.json\n"
        "\n"
        "More: man meopt-devices, man meopt-doctor, man meopt-bench-train\n")},
    {0}};

const struct help_topic *help_topic_named(const char *name)
{
    for (const struct help_topic *t = help_topics; t->name; t++)
        if (strcmp(t->name, name) == 0) return t;
    return NULL;
}
