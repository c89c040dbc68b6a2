/* The table of published chat templates: see chat_template.h. */
#include "core/text/chat_template.h"

/* By chat_template_checksum; tests/tools/compare_templates.py renders those that it finds. */
const struct chat_published chat_published[] = {
    {0x09f4c76400000126, "chatml", NULL},             /* Hermes, Dolphin, Yi */
    {0x0d469078000000c4, "chatml", NULL},             /* ChatML */
    {0x11dd5d2000000123, "chatml", NULL},             /* Hermes, Dolphin, Yi */
    {0x49ab552c000000c7, "chatml", NULL},             /* OpenHermes 2.5 */
    {0xde076a1100000148, "qwen2", NULL},              /* Qwen2 */
    {0xfba3e1ab0000014d, "qwen2", NULL},              /* Qwen2 */
    {0xa21a778700000861, "qwen2.5", NULL},            /* Qwen2.5 of 2024-09 */
    {0xd3b3d9670000082d, "qwen2.5", NULL},            /* Qwen2.5 */
    {0xf7ced6c100000984, "qwen2.5", NULL},            /* the same of trl */
    {0x81a483cd00000ee7, "qwen3", NULL},              /* the same of unsloth */
    {0x8215c3d600000ce0, "qwen3", NULL},              /* Qwen3, its base models */
    {0xc57f688000000cfc, "qwen3", NULL},              /* Qwen3 of 2025-07 */
    {0xed03e58200001482, "qwen3", NULL},              /* the same of axolotl */
    {0xff4698220000132b, "qwen3", NULL},              /* the same of axolotl */
    {0x1cb3eff1000001e4, "llama3", NULL},             /* Llama 3 */
    {0x49272a48000001e8, "llama3", NULL},             /* Llama 3 */
    {0x7f52ea85000002b8, "llama3", NULL},             /* the same of axolotl */
    {0x9bcf578500000227, "llama3", NULL},             /* the same of unsloth */
    {0x9c396bad00000314, "llama3", NULL},             /* the same of trl */
    {0xa6ebd3a200000185, "llama3", NULL},             /* Llama 3 */
    {0xda9fff2600000189, "llama3", NULL},             /* Llama 3 */
    {0xcf36937e000000d1, "chatml-bos", NULL},         /* InternLM 2 */
    {0xd4c51288000000d3, "chatml-bos", NULL},         /* InternLM 2 */
    {0xd92f266a000000d6, "chatml-bos", NULL},         /* InternLM 2 */
    {0xdd655f6d000000d4, "chatml-bos", NULL},         /* InternLM 2 */
    {0x5ae0001a00000c98, "qwen3-thinking", NULL},     /* Qwen3-Thinking-2507 */
    {0xbfea4ace00000c96, "qwen3-thinking", NULL},     /* the same of unsloth */
    {0x0f63c302000017da, "qwen3.5", NULL},            /* Qwen3.5 */
    {0x1f78a361000017e3, "qwen3.5", NULL},            /* Qwen3.6 */
    {0xa3d32387000017db, "qwen3.5", NULL},            /* Qwen3.5 */
    {0x7b2ce96c00000170, "smollm2", NULL},            /* SmolLM2 */
    {0xcabee37700000175, "smollm2", NULL},            /* SmolLM2 */
    {0x3aef21be00000b59, "lfm2", NULL},               /* LFM2 of 2025-11 */
    {0x657f294d00000583, "lfm2", NULL},               /* the same of trl */
    {0x783f94a7000004fe, "lfm2", NULL},               /* LFM2 */
    {0xbda2a81800000bea, "lfm2", NULL},               /* the same of trl */
    {0xc28f7d3700000806, "qwen3-2507", NULL},         /* Qwen3-Instruct-2507 */
    {0xf54e2f5d00000a01, "qwen3-2507", NULL},         /* the same of trl, for training */
    {0xbf4139be00000c6e, "qwen3-2507-unsloth", NULL}, /* qwen3 instruct of unsloth */
    {0x0a716ef00000018e, "chatml-strict", NULL},      /* the same of unsloth */
    {0x88452c0100001444, "chatml-strict", NULL},      /* Qwen3-Coder of 2025-10 */
    {0x9f3904b800000234, "chatml-strict", NULL},      /* nemotron h of axolotl */
    {0xd5c0881000001405, "chatml-strict", NULL},      /* Qwen3-Coder of 2026 */
    {0xf6341cad000013b5, "chatml-strict", NULL},      /* Qwen3-Coder */
    {0x6b2ef12300000442, "chatml-bos-strict", NULL},  /* falcon h1 of axolotl */
    {0xb74156920000019d, "chatml-bos-strict", NULL},  /* ChatML of unsloth */
    {0x235579480000014c, "qwen1.5", NULL},            /* qwen2-nostop-esc */
    {0x9c37bdf900000147, "qwen1.5", NULL},            /* qwen2-nostop */
    {0x274064fa000003f9, "qwen2-vl", NULL},           /* Qwen2.5-VL */
    {0xa7ca6202000009a4, "qwen2-vl", NULL},           /* the same of trl */
    {0x39c39c7c0000101e, "qwen3-vl", NULL},           /* qwen3 vl training of trl */
    {0x6a72c74d00000ee4, "qwen3-vl", NULL},           /* qwen3 vl of trl */
    {0x084271dc000008df, "qwq", NULL},                /* Qwen-QwQ-32B */
    {0xcc2ea2380000091c, "qwq", "<think>\n</think>"}, /* Qwen-QwQ-32B */
    {0xddfc1c9500000e08, "qwen3-trl", NULL},          /* qwen3 training of trl */
    {0x6f1ae33300000809, "mimo", NULL},               /* MiMo-VL */
    {0x05c973b200000d95, "bielik", NULL},             /* Bielik-11B-v3.0-Instruct */
    {0x58454a6100000d36, "llama3.1", NULL},           /* meta-llama-Llama-3.2-3B-Instruct */
    {0x7e38129f00000f69, "llama3.1", NULL},           /* Llama-3.1-8B-Instruct */
    {0xcf9a99da000010dd, "llama4", NULL},             /* llama4 of axolotl */
    {0x49492675000002e9, "llama2", NULL},             /* llama of unsloth */
    {0x824d8c0800000512, "mistral-v1", NULL},         /* mistral v1 of axolotl */
    {0xf72955450000039e, "mistral-v1", NULL},         /* Mistral-7B-Instruct-v0.2 */
    {0x5e60891200000bf0, "mistral-v3", NULL},         /* Mistral-Large-Instruct-2407 */
    {0x8b3abe5c00000e3a, "mistral-v3", NULL},         /* mistral v2v3 of axolotl */
    {0x0d4c351100000b9c, "mistral-v3-tekken", NULL},  /* Mistral-Nemo-Instruct-2407 */
    {0x22b4bc7900000e2a, "mistral-v3-tekken", NULL},  /* mistral v3 tekken of axolotl */
    {0xedbd1c270000084d, "mistral-v3-tekken", NULL},  /* pixtral of axolotl */
    {0xf0f4195e00000be2, "mistral-v3-tekken", NULL},  /* mistralai-Mistral-Nemo-Instruct-2407 */
    {0xff030023000001a7, "mistral-v7", NULL},         /* Mistral-Large-Instruct-2411 */
    {0x4718e1070000098c, "mistral-v7-tekken", NULL},  /* mistral v7 tekken of axolotl */
    {0x7bcd0b9d0000233a, "mistral-v7-tekken", NULL},  /* unsloth-mistral-Devstral-Small-2507 */
    {0xe098cada000016a0, "mistral-small", NULL},      /* Mistral-Small-3.2-24B-Instruct-2506 */
    {0x6dedc996000001d6, "mixtral", NULL},            /* Mixtral-8x7B-Instruct-v0.1 */
    {0x5375cb57000001dd, "mistral-v0.1", NULL},       /* Mistral-7B-Instruct-v0.1-GPTQ */
    {0x44978948000002a6, "mistral-unsloth", NULL},    /* mistral of unsloth */
    {0xc0448efd0000024f, "gemma", NULL},              /* google-gemma-2-2b-it */
    {0xd934dcc80000032e, "gemma", NULL},              /* gemma of axolotl */
    {0xdc426382000004ee, "gemma", NULL},              /* gemma training of trl */
    {0x1c4239ef0000086a, "gemma3", NULL},             /* gemma3 training of trl */
    {0x1d96ab2900000502, "gemma3", NULL},             /* gemma3 of unsloth */
    {0x4ec7fe00000005ef, "gemma3", NULL},             /* gemma3n of axolotl */
    {0x74569811000005af, "gemma3", NULL},             /* gemma3 of axolotl */
    {0x7b27833000000540, "gemma3", NULL},             /* gemma3n of unsloth */
    {0xa21a708500000500, "gemma3", NULL},             /* gemma3 of trl */
    {0x62806ed00000027e, "gemma2-unsloth", NULL},     /* gemma2 of unsloth */
    {0x5112f4900000221b, "gemma4", "<|channel>thought\n<channel|>"}, /* google-gemma-4-31B-it-interleaved */
    {0x53525f9300001f90, "gemma4", NULL},                            /* gemma4 v2 of trl */
    {0x3514d2f500003344, "gemma4-2026", NULL},                       /* diffusion gemma of trl */
    {0x3f541e1c00002c9d, "gemma4-2026", "<|channel>thought\n<channel|>"}, /* google-gemma-4-31B-it */
    {0x4df7c26100002c3a, "gemma4-2026", NULL},                            /* gemma4 v3 of trl */
    {0x79a9992d00002da6, "gemma4-2026", NULL},                            /* gemma4 of trl */
    {0x98c820df0000334c, "gemma4-2026", NULL},                            /* gemma4 v5 of trl */
    {0xa1c1484900002ef0, "gemma4-2026", "<|channel>thought\n<channel|>"}, /* gemma4 of axolotl */
    {0xa6d861b10000363a, "gemma4-2026", NULL},                /* diffusion gemma training of trl */
    {0xe1fa965000002e8d, "gemma4-2026", NULL},                /* gemma4 v4 of trl */
    {0x008e5cb500000349, "phi3", NULL},                       /* phi3 training of trl */
    {0xf0a80bb100000197, "phi3", NULL},                       /* phi3 of trl */
    {0x6e6ce39800000362, "phi3.5", NULL},                     /* phi3 5 training of trl */
    {0xe229d377000001ae, "phi3.5", NULL},                     /* microsoft-Phi-3.5-mini-instruct */
    {0x9bcaa322000000dc, "phi3-unsloth", NULL},               /* Phi-3-vision */
    {0xd3c6e6e700000173, "phi3-unsloth", NULL},               /* phi3 of unsloth */
    {0x7a237e1700000195, "phi3.5-axolotl", NULL},             /* phi 35 of axolotl */
    {0x6f1c9fc4000000da, "phi3-small", NULL},                 /* Phi-3-small */
    {0x8621f782000001ce, "phi4", NULL},                       /* phi4 of unsloth */
    {0x5233303600000179, "phi4-microsoft", NULL},             /* phi-4 */
    {0x8b5cc6c300000170, "phi3-microsoft", NULL},             /* phi 3 of axolotl */
    {0xb0dd5a6a0000010d, "phi3-mini", NULL},                  /* Phi-3-mini */
    {0x791abb29000000fe, "phi3-medium", NULL},                /* Phi-3-medium */
    {0xd28d7336000001b9, "yi-1.5", NULL},                     /* Yi-1.5 */
    {0x1b3bc62800000177, "zephyr", NULL},                     /* zephyr of unsloth */
    {0x5deb3b8c0000019a, "zephyr", NULL},                     /* zephyr-7b-beta, TinyLlama */
    {0x9b3a926f00000188, "danube", NULL},                     /* h2o-danube-1.8b-chat */
    {0x99f43c9a000001cb, "deepseek", NULL},                   /* deepseek-llm-7b-chat */
    {0x30bfdeb6000001d7, "deepseek-v2", NULL},                /* deepseek v2 of axolotl */
    {0x24a03ad900000d32, "deepseek-v3", "<think>\n"},         /* deepseekv3 training of trl */
    {0x375efca00000093d, "deepseek-v3", "<think>\n</think>"}, /* deepseek-ai-DeepSeek-R1-Distill-Qwen-32B */
    {0x74f023a6000008f7, "deepseek-v3", "<think>\n"},         /* deepseek-ai-DeepSeek-R1-Distill-Llama-8B */
    {0x99f82b1600000acd, "deepseek-v3", "<think>\n"},         /* deepseekv3 of trl */
    {0x9ebb604000000bd0, "deepseek-v3", NULL},                /* deepseek v3 of axolotl */
    {0xe5ae76e200000ac4, "deepseek-v3", NULL},                /* DeepSeek-R1 */
    {0xe83812b7000008c6, "deepseek-v3", "<think>\n"},         /* deepseek-ai-DeepSeek-R1-Distill-Llama-8B */
    {0x5729158400000acb, "deepseek-r1-trl", NULL},            /* deepseek r1 distill training of trl */
    {0x349fbf4b0000023f, "vicuna", NULL},                     /* vicuna of unsloth */
    {0xe0973e7e00000252, "vicuna-v0", NULL},                  /* vicuna old of unsloth */
    {0xaff8db290000025b, "alpaca-unsloth", NULL},             /* alpaca of unsloth */
    {0x5c7a56fa00000252, "unsloth", NULL},                    /* unsloth of unsloth */
    {0x318b6e22000000e5, "openchat", NULL},                   /* starling of unsloth */
    {0xd12d7d29000000de, "openchat", NULL},                   /* openchat-3.5-0106 */
    {0xe361cb0600000199, "solar", NULL},                      /* SOLAR-10.7B-Instruct-v1.0 */
    {0x1113532b000004b4, "cohere", NULL},                     /* cohere of axolotl */
    {0x45a2bd3700000526, "cohere", NULL},                     /* cohere of trl */
    {0x57cc3fd9000004ae, "cohere", NULL},                     /* aya of axolotl */
    {0xcedd89cf00000659, "cohere", NULL},                     /* cohere training of trl */
    {0x8affe87b00000434, "granite3", NULL},                   /* granite-3.0-instruct */
    {0xd4521ebb0000042c, "granite3", NULL},                   /* ibm-granite granite-3.0-8b-instruct */
    {0x9286c33d0000108f, "granite3.3", NULL},                 /* ibm-granite-granite-3.3-2B-Instruct */
    {0x4acfb2c300000153, "exaone", NULL},                     /* exaone of axolotl */
    {0x595c5dbd0000067d, "kimi-k2", NULL},                    /* moonshotai-Kimi-K2 */
    {0x9842e690000000f7, "chatglm3", NULL},                   /* ChatGLM3 */
    {0x1cf94e09000002e4, "metharme", NULL},                   /* metharme of axolotl */
    {0x7d486087000000bf, "bos-eos", NULL},                    /* mlabonne AlphaMonarch-7B */
    {0x5d47bf8900000430, "rwkv", NULL},                       /* llama-cpp-rwkv-world */
    {0x7ae596b2000004e9, "smolvlm", NULL},                    /* smolvlm training of trl */
    {0xbae06f8b00000193, "smolvlm", NULL},                    /* smolvlm of trl */
    {0x0e1e3bb5000004a8, "idefics3", NULL},                   /* idefics3 training of trl */
    {0xf12505d800000198, "idefics3", NULL},                   /* idefics3 of trl */
    {0x58b37faf0000045a, "llava-next", NULL},                 /* llava next training of trl */
    {0xbd87c69a00000297, "llava-next", NULL},                 /* llava next of trl */
    {0x0032c2520000205f, "nemotron3", NULL},                  /* nemotron 3 5 lightning training of trl */
    {0x5e3c904400002226, "nemotron3", NULL},                  /* nemotron 3 nano training of trl */
    {0x69e2b85200001e00, "nemotron3", NULL},                  /* nemotron 3 5 lightning of trl */
    {0x7f69b38300001ef0, "nemotron3", NULL},                  /* nemotron 3 ultra of trl */
    {0x98eacfe000002155, "nemotron3", NULL},                  /* nemotron 3 ultra training of trl */
    {0xd4ae234b00002064, "nemotron3", NULL},                  /* NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 */
    {0xda39940d000023a4, "nemotron3", NULL},                  /* nemotron 3 super training of trl */
    {0xe92d7ad600002142, "nemotron3", NULL},                  /* nemotron 3 super of trl */
    {0x25812f9e00000e9b, "lfm2.5", NULL},                     /* LFM2.5-8B-A1B */
    {0x3896a56800001197, "lfm2.5", NULL},                     /* lfm2 2 5 vl of trl */
    {0x615a761200000f16, "lfm2.5", NULL},                     /* lfm2 2 5 v2 of trl */
    {0x6a5f8edf0000061b, "lfm2.5-instruct", NULL},            /* LFM2.5-Instruct */
    {0x71d533fb00001939, "qwen3.5-trl", NULL},                /* qwen3 6 training of trl */
    {0xad6face70000198a, "qwen3.5-trl", NULL},                /* qwen3 5 nothink training of trl */
    {0xffcbc0c000001987, "qwen3.5-trl", NULL},                /* qwen3 5 think training of trl */
    {0x29a441240000153d, "granite4", NULL},                   /* ibm-granite-granite-4.0 */
    {0x7409471900001405, "granite4.1", NULL},                 /* ibm-granite-granite-4.1 */
    {0x903abe9c00000b6b, "deepseek-v3.1", NULL},              /* deepseek-ai-DeepSeek-V3.1 */
    {0x52ac1a1c00000a61, "deepseek-r1", NULL},                /* llama-cpp-deepseek-r1 */
    {0x403e168200000de3, "smollm3", NULL},                    /* HuggingFaceTB-SmolLM3-3B */
    {0x663be81100000746, "phi4-reasoning", NULL},             /* phi 4 of axolotl */
    {0},
};
