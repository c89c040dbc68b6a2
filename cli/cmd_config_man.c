/* meopt config man (hidden): the table of keys as the page meopt.yaml(5). A test demands that the committed
 * page equals the output. */
#include "cli/cmd_config.h"
#include "cli/command.h"
#include "core/config/value.h"

#include <stdlib.h>
#include <string.h>

/* Text for mdoc: no backslash, no line that begins with a control character. */
static void put_text(const char *text)
{
    if (*text == '.' || *text == '\'') fputs("\\&", stdout);
    for (; *text; text++) {
        if (*text == '\\') fputs("\\e", stdout);
        else putchar(*text);
    }
}

/* toupper follows the locale: in a Turkish one i has another capital, or none. */
static char capital(char letter)
{
    return letter >= 'a' && letter <= 'z' ? (char)(letter - 'a' + 'A') : letter;
}

static void put_key(int key)
{
    const struct config_key *k = &config_keys[key];
    printf(".It Ic %s\n", k->name);
    putchar(capital(k->help[0]));
    put_text(k->help + 1);
    printf(".\n");
    char *expected = value_expected(key);
    expected[0] = capital(expected[0]);
    put_text(expected);
    if (k->unit && !strstr(expected, k->unit)) printf(", in %s", k->unit);
    printf(".\n");
    free(expected);
    if (k->standard[0]) printf("Default:\n.Cm %s .\n", k->standard);
    if (k->aliases) {
        printf("Other spellings: ");
        for (const char *p = k->aliases; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
            printf("%s%.*s", p == k->aliases ? "" : ", ", (int)strcspn(p, "|"), p);
        printf(".\n");
    }
    const char *spelling;
    for (int i = 1; (spelling = config_key_spelling(key, i)) != NULL; i++)
        printf("May be written as\n.Ic %s .\n", spelling);
    printf("Used by:\n");
    for (const char *p = k->used_by; *p; p += strcspn(p, " "), p += *p == ' ') {
        const char *next = p + strcspn(p, " ");
        printf(".Cm %.*s%s\n", (int)(next - p), p, *next ? " ," : " .");
    }
    bool chooses = strcmp(k->name, "train.memory") == 0; /* its help says which */
    if (!k->numbers && !chooses) printf("Does not change the numbers of a run.\n");
}

static const char *const sections[][2] = {
    {"model", "The teacher, and both towers where they are of one family."},
    {"model_t", "The teacher."},
    {"model_s", "The student."},
    {"loss", "What is minimised."},
    {"data", "The images."},
    {"data_s", "The images of a student that sees them in another way than its teacher, such as one of "
               "another family.\n"
               "Each is decoded once; random crops are of the same box."},
    {"train", "How long, in what pieces, at what precision."},
    {"optim", "The optimizer.\nFormats and presets are explained in\n.Xr meopt-optimizers 7 ."},
    {"device", "Where to compute."},
    {"dist", "Several ranks as one.\nWhat each of them holds and sends is in\n.Xr meopt-train 1 ."},
    {"run", "Where the run is kept."},
};

static const char images_text[] =
    ".Sh IMAGES\n"
    "Below\n.Cm data.root\nall files are images whose names end in .jpg, .jpeg, .png or .webp, in any case; "
    "names "
    "that begin with a dot are passed over.\n"
    "Other endings are counted and told once.\n"
    "Symbolic links are followed, but for those to a directory above.\n"
    "The order is that of the bytes of the paths.\n.Pp\n"
    "Where there is no such file but tar archives (.tar, not compressed, as webdataset has them), images are "
    "their "
    "members, by the path\n.Pa ARCHIVE/MEMBER .\n"
    "They are shuffled as one set and read where they lie; the headers are read at each start.\n"
    "Archives beside images, which may hold the same ones, are not read.\n"
    "One that is damaged, cut off or compressed is an error (3), unless\n.Cm data.exclude\nleaves it "
    "out.\n.Pp\n"
    "Images for training are not mixed with others.\n"
    "Where a directory train2014 is among the paths, only images below such a one are taken;\n"
    "else where some lie below a directory train2017, train or training and others below val2014, val2017, "
    "val, "
    "valid, validation, dev, test2014, test2015, test2017, test or testing, only the first.\n"
    "Of a path the outermost of these directories counts, of an archive also a word of its name, as in "
    "set-train-00.tar.\n"
    "What was chosen is told;\n.Cm data.include\nchooses otherwise: with\n.Cm \\(dq*\\(dq\nall are "
    "taken.\n.Pp\n"
    "A pattern is of a path relative to\n.Cm data.root ,\nas bytes: * stands for any bytes, / too, ? for one "
    "byte.\n"
    "A pattern that matches a directory takes all below it:\n.Cm val2017 ,\n.Cm \\(dq*/masks\\(dq ,\n.Cm "
    "\\(dq*.png\\(dq .\n"
    "(YAML wants quotes where a text begins with *.)\n"
    "What\n.Cm data.exclude\nmatches is not looked at.\n.Pp\n"
    "Images are decoded to 8-bit RGB as PIL's convert(\\(dqRGB\\(dq) does it:\n"
    "grey is replicated, palettes are expanded, alpha is dropped, CMYK goes through PIL's own formula, the "
    "orientation in EXIF and colour profiles are ignored, of an animation the first frame is taken.\n"
    "Converting comes first, as in torchvision's ImageFolder, timm and webdataset loaders;\n"
    "OpenCLIP's own image_transform resizes first and converts then, which gives other pixels of images with "
    "palette or alpha.\n"
    "Of 16 bits a channel the high byte is kept, also of 16-bit grey, where PIL clips all above 255 to "
    "white.\n"
    "They are then resized, cropped and normalised as the library of the checkpoint does it.\n"
    "With\n.Ic data.pipeline No auto\nthe files beside the checkpoint say how:\n"
    ".Bl -bullet -compact\n"
    ".It\npretrained_cfg in timm's\n.Pa config.json :\ninput_size, mean, std, interpolation, crop_pct and "
    "crop_mode (center is shortest; border is refused)\n"
    ".It\npreprocess_cfg in\n.Pa open_clip_config.json :\nmean, std, interpolation and resize_mode "
    "(longest is refused)\n"
    ".It\ntransformers'\n.Pa preprocessor_config.json\nor\n.Pa processor_config.json\nof the classes "
    "CLIPImageProcessor, BitImageProcessor, ViTImageProcessor, DeiTImageProcessor, BeitImageProcessor, "
    "SiglipImageProcessor and DINOv3ViTImageProcessor\n"
    ".El\n"
    "What they say in another way than these is refused; with\n.Ic data.pipeline\nthey are not read.\n"
    "Without such a file the family's usual preprocessing is assumed, and\n.Xr meopt-plan 1 ,\n.Xr "
    "meopt-train 1\nand\n.Xr meopt-embed 1\nsay so: clip (OpenAI's mean, the shorter side becomes "
    "image_size) "
    "or dinov2 (ImageNet's mean, crop_pct 0.875).\n"
    "Keys that are given replace single values.\n.Pp\n"
    ".Ic data.resize No shortest\nkeeps the shape: the shorter side becomes image_size / crop_pct, rounded "
    "down.\n"
    ".Cm squash\nmakes both sides that long: timm's squash, open_clip's squash (crop_pct 1) and "
    "transformers' "
    "size of height and width.\n"
    "Of both the centre is cropped.\n"
    ".Cm exact\ndoes not resize (transformers' do_resize: false): the centre is cropped, and an image that "
    "is "
    "smaller than image_size is bad.\n"
    "Random crops of\n.Ic data.augment\nare resized to image_size with the same filter.\n.Pp\n"
    ".Ic data.resize_as\nnames the rounding, which changes some pixels by 1 of 255 and an odd margin by one "
    "pixel:\n"
    ".Cm pil\nis Pillow 13 and torchvision's transforms of its images, as timm and open_clip have them (an "
    "earlier Pillow gives other pixels of images that shrink far more in height than in width);\n"
    ".Cm hf\nis transformers with its torchvision backend,\n.Cm hf_pil\nwith its PIL backend,\n"
    ".Cm hf_float\nits DINOv3, which resizes values that are not rounded to bytes.\n"
    "The first three are bit-identical to their libraries, the last within float rounding.\n.Pp\n"
    "An image has at most 20000 pixels a side, 89478485 in all and 256 MiB as a file.\n.Pp\n"
    "Data that are no such image are bad: named, counted, and replaced by the next image of the epoch's "
    "order, "
    "the same on every run; see\n.Cm data.max_bad .\n"
    "A file that cannot be read for another reason ends the command.\n";

static const char activations_text[] =
    ".Sh ACTIVATIONS\n"
    "What a block keeps between forward and backward is most of the memory of a large batch.\n"
    "With\n.Ic train.save_activations No minimal\nit is what is not cheap to make again; the outputs of "
    "norms "
    "and activations are made again, to the same bits.\n.Pp\n"
    ".Cm 8bit\nkeeps of that the feed-forward's values before the activation in 8 bits (a scale for each 64, "
    "of which the largest is kept apart in bf16; rounded at random, and read back less what was random), and "
    "makes attention's output again from queries, keys and values.\n"
    "That changes the numbers of a run: gradients point where those of\n.Cm minimal\ndo within a cosine of "
    "0.9999 for each matrix\n.Pq test Em golden_towers ,\nalso with one hidden unit of each 64 that is 30, "
    "100 or 300 times the others: 0.99996 and more\n.Pq test Em tower_outliers .\n"
    "Two such units in one group of 64 are not provided for: the scale is that of the second.\n"
    "The loss of three pairs of models and five seeds was the same within 0.11 %, p .08 and more\n"
    ".Pq Pa tests/bench/RESULTS.md ,\nbefore the largest was kept apart.\n.Pp\n"
    "The residual stream is fp32 while a pass computes it, as under PyTorch's autocast to bf16; it occupies "
    "the buffer of its own gradient.\n"
    "Backward, and a block that is computed again, read the normalized stream in fp16, with the mean and "
    "deviation of each row in fp32.\n"
    "So a channel of the stream, tokens, a hidden unit or a LayerNorm gamma that are 100 to 3,000 times the "
    "others cost what they cost autocast: gradients of pre-norm towers of width 256 were 0.5 to 1.6 times as "
    "far from exact\n.Pq test Em tower_outliers .\n"
    "A post-norm tower multiplies the stream itself, which is rounded to bf16 for that.\n.Pp\n"
    "There is no\n.Cm full ,\nwhich would keep the outputs of norms and activations, too: six tenths more "
    "bytes, "
    "to save passes that are bound by the memory they would read those from.\n"
    "With\n.Ic train.recompute No block\nthe activations of one block are kept alone, and\n.Cm 8bit\nis "
    "refused: "
    "it has no use there.\n";

static int man_run(const struct arguments *args, struct error *err)
{
    (void)args;
    (void)err;
    fputs(".\\\" Made by 'meopt config man' from core/config/schema.c: change it there.\n"
          ".Dd November 21, 2026\n.Dt MEOPT.YAML 5\n.Os\n.Sh NAME\n.Nm meopt.yaml\n.Nd an experiment of "
          "meopt\n.Sh DESCRIPTION\n"
          "An experiment is a YAML file of sections, each with keys indented below it:\n"
          ".Bd -literal -offset indent\nmodel:\n  weight_t: ../ModelWeight/teacher.pt\n  weight_s: "
          "../ModelWeight/student.pt\ndata:\n"
          "  root: ../COCO2014\noptim:\n  use_meopt: true\n.Ed\n.Pp\n"
          "Paths are relative to the YAML file, also where a key is given on the command line as\n.Ar key Ns "
          "= Ns Ar value .\n"
          "A path that begins with ~/ is relative to the home directory.\n.Pp\n"
          "Values are taken as YAML 1.2's core schema takes them.\n"
          "Where YAML 1.1 readers, such as PyYAML, take a value differently (1e-3 is text to them, no is "
          "false, 012 is ten),\n"
          "it is accepted with a note that says what to write instead.\n.Pp\n"
          "Unknown keys, wrong types, values out of range, keys that are given twice and values that cannot "
          "stand together are errors\n"
          "with file, line and column.\n"
          "Anchors, aliases and merges (<<) may be used, at most 1,000 of each; sections that begin with x- "
          "are ignored, so that "
          "anchors have a place.\n"
          "A file has at most 4 MiB, one document, and is UTF-8.\n",
          stdout);
    for (size_t s = 0; s < sizeof sections / sizeof *sections; s++) {
        size_t n = strlen(sections[s][0]);
        printf(".Ss %s\n", sections[s][0]);
        printf("%s\n", sections[s][1]);
        printf(".Bl -tag -width Ds\n");
        for (int key = 0; key < config_key_count; key++)
            if (strncmp(config_keys[key].name, sections[s][0], n) == 0 && config_keys[key].name[n] == '.')
                put_key(key);
        printf(".El\n");
    }
    fputs(images_text, stdout);
    fputs(activations_text, stdout);
    fputs(
        ".Sh EXAMPLES\nThe shipped experiments are commented:\n.Dl meopt config new eva_clip\n.Sh SEE ALSO\n"
        ".Xr meopt-config 1 ,\n.Xr meopt-plan 1 ,\n.Xr meopt-train 1 ,\n.Xr meopt-optimizers 7 ,\n.Xr "
        "meopt-weights 7\n",
        stdout);
    return 0;
}

const struct command cmd_config_man = {"config man", "",     "print the page meopt.yaml(5)", NULL, NULL, 0, 0,
                                       true,         man_run};
