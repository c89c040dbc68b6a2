/* meopt config man (hidden): prints the table of keys as the page meopt.yaml(5), in the user's language. A
 * test compares the committed pages with this output. */
#include "cli/config/cmd_config.h"
#include "cli/command.h"
#include "core/base/translate.h"
#include "core/config/value.h"

#include <stdlib.h>
#include <string.h>

/* Converts ASCII to upper case; toupper depends on the locale (Turkish i). */
static char capital(char letter)
{
    return letter >= 'a' && letter <= 'z' ? (char)(letter - 'a' + 'A') : letter;
}

/* Prints text for mdoc: escapes backslashes and control characters at the beginning of a line. */
static void put_text(const char *text, bool capitalised)
{
    if (*text == '.' || *text == '\'') fputs("\\&", stdout);
    for (const char *p = text; *p; p++) {
        if (*p == '\\') fputs("\\e", stdout);
        else putchar(p == text && capitalised ? capital(*p) : *p);
    }
}

static void put_key(int key)
{
    const struct config_key *k = &config_keys[key];
    printf(".It Ic %s\n", k->name);
    put_text(_(k->help), strcmp(_(k->help), k->help) == 0);
    fputs(_(".\n"), stdout);
    char *expected = value_expected(key);
    put_text(expected, true);
    if (k->unit && !strstr(expected, k->unit)) printf(_(", in %s"), _(k->unit));
    fputs(_(".\n"), stdout);
    free(expected);
    if (k->standard[0]) printf(_("Default:\n.Cm %s .\n"), k->standard);
    if (k->aliases) {
        fputs(_("Aliases: "), stdout);
        for (const char *p = k->aliases; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
            printf("%s%.*s", p == k->aliases ? "" : _(", "), (int)strcspn(p, "|"), p);
        fputs(_(".\n"), stdout);
    }
    const char *spelling;
    for (int i = 1; (spelling = config_key_spelling(key, i)) != NULL; i++)
        printf(_("Alternative spelling:\n.Ic %s .\n"), spelling);
    fputs(_("Used by:\n"), stdout);
    for (const char *p = k->used_by; *p; p += strcspn(p, " "), p += *p == ' ') {
        const char *next = p + strcspn(p, " ");
        printf(".Cm %.*s%s\n", (int)(next - p), p, *next ? _(" ,") : _(" ."));
    }
    bool chooses = strcmp(k->name, "train.memory") == 0; /* its help names the changes */
    if (!k->numbers && !chooses) printf("%s", _("Does not change the numbers of a run.\n"));
}

static const char *const sections[][2] = {
    {"model", N_("The teacher, and both towers if they belong to one family.")},
    {"model_t", N_("The teacher.")},
    {"model_s", N_("The student.")},
    {"loss", N_("The loss.")},
    {"lora", N_("Adapters (LoRA) of a language model, or of the student or classifier of images.")},
    {"data", N_("The images, or tokens.")},
    {"data_s",
     N_("The images of a student whose preprocessing differs from the teacher's, for example one of "
        "a different family.\n"
        "Each image is decoded once; random crops use the same box.")},
    {"train", N_("Length, batches and precision of the training.")},
    {"optim", N_("The optimizer.\n.Xr meopt-optimizers 7\nexplains formats and presets.")},
    {"device", N_("The device.")},
    {"dist", N_("Several ranks.\n.Xr meopt-train 1\ndescribes what each of them holds and sends.")},
    {"run", N_("The run directory.")},
};

static const char images_text[] =
    /* xgettext:no-c-format */
    N_(".Sh IMAGES\n"
       "All files below\n.Cm data.root\nwhose names end in .jpg, .jpeg, .png or .webp, in any case, are "
       "images.\n"
       "Names that begin with a dot are ignored, and the directories of other programs: @eaDir, __MACOSX, "
       "#recycle, lost+found and the like.\n"
       "Other endings are counted and reported once.\n"
       "Symbolic links are followed, except those to a parent directory.\n"
       "The order is that of the bytes of the paths.\n.Pp\n"
       "If there is no such file but tar archives (.tar, uncompressed, as in webdataset), the images are "
       "their "
       "members, with the path\n.Pa ARCHIVE/MEMBER .\n"
       "They are shuffled as one set and read in place; the headers are read at each start.\n"
       "A member KEY.seg.png is no image if there is a KEY.jpg: a key ends at the first dot of the name.\n"
       "Archives next to images, which may contain the same images, are not read.\n"
       "A damaged, truncated or compressed archive is an error (3), unless\n.Cm data.exclude\nexcludes "
       "it.\n.Pp\n"
       "If there are neither, but CIFAR-10 or CIFAR-100, its images are used, with the path\n"
       ".Pa FILE/NUMBER .\n"
       "It may be unpacked (cifar-10-batches-bin, cifar-10-batches-py, cifar-100-binary, cifar-100-python), "
       "or "
       "the archive as it is downloaded: cifar-10-python.tar.gz, cifar-10-binary.tar.gz, "
       "cifar-100-python.tar.gz, cifar-100-binary.tar.gz; then the path begins with its name.\n"
       "Such an archive is decompressed at each start, to 185 MB of host memory that the ranks of a host "
       "share; ranks of srun and mpirun have a copy each.\n.Pp\n"
       "Images for training are not mixed with others.\n"
       "If the paths contain a directory train2014, only images below it are used.\n"
       "Else, if some images are below a directory train2017, train or training, and others below val2014, "
       "val2017, val, valid, validation, dev, test2014, test2015, test2017, test or testing, only the first "
       "ones "
       "are used.\n"
       "The outermost of these directories in a path counts; in the name of an archive also a word, as in "
       "set-train-00.tar.\n"
       "Directories next to each other whose names differ by such a word alone, as seg_train and seg_test, "
       "are such parts, too.\n"
       "For a classification, images below train are not mixed with those below unlabeled.\n"
       "Images that\n.Cm data.val\nnames, a directory below\n.Cm data.root\nor a list, are left out.\n"
       "The choice is logged;\n.Cm data.include\noverrides it:\n.Cm \\(dq*\\(dq\nselects all images.\n.Pp\n"
       "A pattern is matched with a path relative to\n.Cm data.root ,\nas bytes: * matches any bytes "
       "including "
       "/, ? matches one byte.\n"
       "A pattern that matches a directory selects everything below it:\n.Cm val2017 ,\n.Cm "
       "\\(dq*/masks\\(dq "
       ",\n.Cm \\(dq*.png\\(dq .\n"
       "(YAML requires quotes if a text begins with *.)\n"
       "Files that match\n.Cm data.exclude\nare not read.\n.Pp\n"
       "Images are decoded to 8-bit RGB as by PIL's convert(\\(dqRGB\\(dq).\n"
       "Grey is replicated, palettes are expanded, alpha is dropped, CMYK uses PIL's own formula, the "
       "orientation in EXIF and colour profiles are ignored, and the first frame of an animation is used.\n"
       "The conversion comes first, as in torchvision's ImageFolder, timm and webdataset loaders.\n"
       "OpenCLIP's own image_transform resizes before it converts, which gives different pixels for images "
       "with "
       "a palette or alpha.\n"
       "Of 16 bits per channel the high byte is used, also for 16-bit grey, where PIL clips all values above "
       "255 "
       "to white.\n"
       "Images are then resized, cropped and normalised as by the library of the checkpoint.\n"
       "With\n.Ic data.pipeline No auto\nthe files next to the checkpoint describe that:\n"
       ".Bl -bullet -compact\n"
       ".It\npretrained_cfg in timm's\n.Pa config.json :\ninput_size, mean, std, interpolation, crop_pct and "
       "crop_mode (center is shortest; border is refused)\n"
       ".It\npreprocess_cfg in\n.Pa open_clip_config.json :\nmean, std, interpolation and resize_mode "
       "(longest is refused)\n"
       ".It\ntransformers'\n.Pa preprocessor_config.json\nor\n.Pa processor_config.json\nof the classes "
       "CLIPImageProcessor, BitImageProcessor, ViTImageProcessor, DeiTImageProcessor, BeitImageProcessor, "
       "SiglipImageProcessor and DINOv3ViTImageProcessor\n"
       ".El\n"
       "Unsupported values in these files are refused; with\n.Ic data.pipeline\nthe files are not read.\n"
       "Without such a file the usual preprocessing of the family is assumed, and\n.Xr meopt-plan 1 ,\n.Xr "
       "meopt-train 1\nand\n.Xr meopt-embed 1\nreport it: clip (OpenAI's mean, the shorter side becomes "
       "image_size), dinov2 (ImageNet's mean, crop_pct 0.875) or siglip (mean 0.5, squash).\n"
       "Keys in the configuration replace single values.\n.Pp\n"
       ".Ic data.resize No shortest\nkeeps the aspect ratio: the shorter side becomes image_size / crop_pct, "
       "rounded down.\n"
       ".Cm squash\nresizes both sides to that length: timm's squash, open_clip's squash (crop_pct 1) and "
       "transformers' size of height and width.\n"
       "Both are followed by a crop of the centre.\n"
       ".Cm exact\ndoes not resize (transformers' do_resize: false): the centre is cropped, and an image "
       "smaller "
       "than image_size is bad.\n"
       "Random crops of\n.Ic data.augment\nare resized to image_size with the same filter.\n.Pp\n"
       ".Ic data.resize_as\nselects the rounding, which changes some pixels by 1 of 255 and an odd margin by "
       "one "
       "pixel:\n"
       ".Bl -tag -width hf_float -compact\n"
       ".It Cm pil\nPillow 13 and torchvision's transforms of its images, as in timm and open_clip (an "
       "earlier "
       "Pillow gives different pixels for images that shrink far more in height than in width)\n"
       ".It Cm hf\ntransformers with its torchvision backend\n"
       ".It Cm hf_pil\ntransformers with its PIL backend\n"
       ".It Cm hf_float\ntransformers' DINOv3, which resizes values that are not rounded to bytes\n"
       ".El\n"
       "The first three are bit-identical to their libraries, the last one within float rounding.\n.Pp\n"
       "An image has at most 20000 pixels per side, 89478485 pixels in all and 256 MiB as a file.\n.Pp\n"
       "Other data are bad images: they are named, counted, and replaced by the next image in the order of "
       "the "
       "epoch, the same on every run; see\n.Cm data.max_bad .\n"
       "A file that cannot be read for a different reason ends the command.\n");

static const char classes_text[] =
    /* xgettext:no-c-format */
    N_(".Sh CLASSES\n"
       "With\n"
       ".Ic train.objective No classify ,\n"
       "or\n"
       ".Ic train.eval No knn ,\n"
       "each image has a class.\n"
       "It comes from\n"
       ".Bl -bullet -compact\n"
       ".It\n"
       "the list\n"
       ".Cm data.labels ,\n"
       "a CSV file (RFC 4180, UTF-8) of lines PATH,LABEL with paths relative to\n"
       ".Cm data.root .\n"
       "A first line without the name of an image is a header; its columns may be in any order.\n"
       "If all labels are integers, they are class indices from 0, else class names.\n"
       "Images that are not in the list are left out and reported.\n"
       ".It\n"
       "the first directory below\n"
       ".Cm data.root ,\n"
       "or below its directory for training, as in torchvision's ImageFolder.\n"
       "Images elsewhere are left out and reported.\n"
       ".It\n"
       "in tar archives the member KEY.cls next to KEY.jpg, whose text is a class index (webdataset); "
       "without such members the first directory in the archive.\n"
       ".It\n"
       "the archives of CIFAR-10 and CIFAR-100, packed or unpacked, in binary or python form;\n"
       ".Ic data.labels No coarse\n"
       "selects the 20 superclasses of CIFAR-100.\n"
       ".El\n"
       "With\n"
       ".Ic model.family No bert\n"
       "each document of token files has a class, in X.classes next to X.bin and X.idx: see TOKENS.\n"
       ".Pp\n"
       "Names are numbered as those in the checkpoint's\n"
       ".Pa config.json ,\n"
       "if they are the same: id2label of transformers, label_names of timm, or the names that meopt wrote.\n"
       "If its classifier has as many classes of other names, they are refused; numbers as labels are "
       "numbers of id2label.\n"
       "Otherwise, and with\n"
       ".Ic data.class_order No sorted ,\n"
       "names are numbered in the order of their bytes.\n"
       "The start prints the first names.\n"
       "Directories that contain all images are no classes, if there are directories in them.\n"
       "At most 1048576 classes are possible, and at least two are required.\n"
       "A class without images for training is reported; one that only validation images have is refused.\n"
       "Names and labels belong to the run.\n"
       ".Pp\n"
       "Images of\n"
       ".Cm data.val\n"
       "are resized and cropped in the centre, in their own order.\n"
       "For a distillation it is a directory, and its images need no classes.\n"
       "If\n"
       ".Cm data.val\n"
       "is the same directory as\n"
       ".Cm data.root ,\n"
       "its part for validation is used, else that for test.\n"
       ".Pp\n"
       ".Cm data.randaugment\n"
       "and\n"
       ".Cm data.erasing\n"
       "follow the random crop and the mirroring; their pixels are those of torchvision on PIL images.\n"
       ".Cm data.mixup\n"
       "and\n"
       ".Cm data.cutmix\n"
       "mix rows 2k and 2k + 1 of the global batch, after normalisation, each with a share of its own.\n"
       "All are functions of train.seed, the step and the position in the global batch, whatever the number "
       "of ranks and workers.\n");

static const char evaluation_text[] =
    /* xgettext:no-c-format */
    N_(".Sh EVALUATION\n"
       "With\n.Cm data.val\nthe images there are evaluated after every\n.Cm train.eval_every\nepochs and "
       "after "
       "the last step.\n"
       "A classifier of images or texts has loss, top-1 and top-5, a distillation the loss and the cosine to "
       "the teacher.\n"
       ".Cm data.val\nof a distillation cannot be used with\n.Cm train.cache_teacher .\n"
       ".Pp\n"
       "With\n.Ic train.eval No knn\na distillation also has the score of DINO: knn_top1 and knn_top5 of "
       "weighted "
       "nearest neighbours (arXiv:1805.01978, arXiv:2104.14294).\n"
       "The features are the student's pooled rows before projection and head.\n"
       "An image's 20 nearest training images by cosine vote for their classes, each with exp(cosine / "
       "0.07).\n"
       "The images of\n.Cm data.root\nand\n.Cm data.val\nneed classes for that, as above; the training does "
       "not "
       "read them.\n"
       "If there are more than\n.Cm train.knn_bank\ntraining images, the list is divided into as many equal "
       "ranges, and train.seed draws one image of each.\n"
       "Their features are computed before each evaluation, without augmentation, and each rank holds all of "
       "them.\n"
       "The best checkpoint is then that with the best knn_top1.\n"
       ".Pp\n"
       "Ranks share the images; the figures are the same on any number of ranks.\n");

static const char tokens_text[] =
    /* xgettext:no-c-format */
    N_(".Sh TOKENS\n"
       "With\n"
       ".Ic train.objective No language\n"
       "or\n"
       ".Cm masked ,\n"
       "or\n"
       ".Cm classify\n"
       "with\n"
       ".Ic model.family No bert ,\n"
       "the data are token files.\n"
       ".Cm data.root\n"
       "and\n"
       ".Cm data.val\n"
       "are a file, or a directory, of which those files are used whose names end in .bin, or else all, in "
       "the "
       "order of the bytes of their names.\n"
       "If the names of some have the word train, and others val or test, as train.bin and val.bin, or "
       "X_train_000001.bin and X_val_000000.bin, training reads the first ones and validation the others; a "
       "file that\n.Cm data.val\nnames is not trained on.\n"
       "A start and meopt config check --data name the first of them, and count those that are not read: "
       "hidden "
       "files, directories, files without .bin next to others.\n"
       ".Cm data.include\n"
       "and\n"
       ".Cm data.exclude\n"
       "select files of\n"
       ".Cm data.root .\n"
       ".Ic data.tokens\n"
       "is their format:\n"
       ".Bl -tag -width megatron -compact\n"
       ".It Cm megatron\n"
       "X.bin with its index X.idx, as Megatron-LM's preprocess_data.py and\n"
       ".Xr meopt-tokenize 1\n"
       "write them; u8, i8, i16, i32, i64 or u16.\n"
       "X.labels, if it exists, says which tokens are predicted, X.classes the class of each document\n"
       ".It Cm llmc\n"
       "llm.c's .bin: a header of 256 integers, then u16 (magic 20240520) or u32 (20240801)\n"
       ".It Cm uint16\n"
       "u16 alone, as nanoGPT writes it\n"
       ".It Cm uint32\n"
       "u32 alone\n"
       ".It Cm bytes\n"
       "any file: each byte is a token, for a model with a vocabulary of 256\n"
       ".El\n"
       "Numbers are little-endian.\n"
       "Files are mapped, and not copied to memory.\n"
       "An index is checked as a whole at each start: a contradiction is refused with its byte (exit code "
       "3).\n"
       "A token that is not below model.vocabulary ends the command with file and position when a sample has "
       "it "
       "(exit code 7).\n"
       "Links to files are followed; one that leads nowhere is refused.\n"
       "A file that shrinks while it is read ends the command (exit code 1); one that grows is read up to "
       "the "
       "size that it had, and a resume is refused.\n"
       ".Pp\n"
       "All files are one sequence of tokens.\n"
       ".Ic data.documents\n"
       "is how it becomes samples of model.context tokens:\n"
       ".Bl -tag -width joined -compact\n"
       ".It Cm whole\n"
       "A document that fits is never cut.\n"
       "A sample is a few documents and padding.\n"
       "A document of n tokens takes n, and its first one is not predicted, as in transformers.\n"
       "The longest is placed first, each in the sample with the fewest tokens left that hold it (best fit); "
       "where that leaves more than 1 % of padding, pairs of samples are divided again.\n"
       "train.seed decides among equals.\n"
       "Documents without a label are left out; those that are longer than a sample are refused, cut or "
       "skipped by\n"
       ".Ic data.too_long .\n"
       "An epoch visits all samples once.\n"
       "Each rank holds 12 bytes per document, and reads files without an index once at the start.\n"
       ".It Cm apart\n"
       "A sample is a window of the sequence, and the token after each of its tokens is the label.\n"
       "Windows cut documents.\n"
       "An epoch visits the windows once, from an offset that is drawn for it; at most two windows are left "
       "out.\n"
       ".It Cm joined\n"
       "Windows too, and all documents are one text.\n"
       ".It Cm auto\n"
       "whole if a file has labels (X.labels: conversations, prompts with completions), else apart, and "
       "always apart with\n"
       ".Ic train.objective No masked .\n"
       "A start,\n"
       ".Xr meopt-plan 1\n"
       "and\n"
       ".Ic meopt config check --data\n"
       "print which it is, and documents, tokens, labels, lengths, samples and padding.\n"
       ".El\n"
       "Unless they are joined, a token sees and predicts only tokens of its own document, and positions "
       "begin again with each.\n"
       "Documents end by Megatron's index, in other files after the token\n"
       ".Cm data.end ,\n"
       "and at the end of each file.\n"
       "The order of an epoch is a function of train.seed and the epoch, whatever the number of ranks; with\n"
       ".Ic data.shuffle No false\n"
       "it is that of the files.\n"
       "The loss is the mean over all labels of the global batch; a step without labels has none, and "
       "changes nothing.\n"
       ".Pp\n"
       "An evaluation on\n"
       ".Cm data.val\n"
       "predicts each label once.\n"
       "Its own files decide what auto is.\n"
       ".Pp\n"
       "With\n"
       ".Ic train.objective No masked\n"
       "an encoder (bert) predicts 15 % of the tokens of each sample: 80 % of these are replaced by\n"
       ".Cm data.mask_token ,\n"
       "10 % by another token, and 10 % stay.\n"
       "Which ones is a function of train.seed, the epoch and the sample, whatever the number of ranks.\n"
       "Tokens below\n"
       ".Cm data.special_tokens\n"
       "are neither predicted nor put in place of others.\n"
       "Logits are computed for the predicted tokens alone.\n"
       "An evaluation has the same masks each time, whatever the seed; loss and perplexity are those of the "
       "masked tokens.\n"
       "Samples are windows of the files, to which no [CLS] or [SEP] is added; all tokens have the first "
       "token "
       "type.\n"
       "Masks of whole words and the prediction of the next sentence are not offered: RoBERTa "
       "(arXiv:1907.11692) "
       "trains better without the latter.\n"
       ".Pp\n"
       "With\n"
       ".Ic train.objective No classify\n"
       "and\n"
       ".Ic model.family No bert\n"
       "(or an arch of that family) a sample is a document, and its label is its class in X.classes, which\n"
       ".Ic meopt tokenize --label\n"
       "writes next to X.bin and X.idx.\n"
       "A document of less than model.context tokens is padded, and no token sees the padding; of a longer "
       "one "
       "its first tokens and its last one are read, as transformers cuts them.\n"
       "The logits are those of BertForSequenceClassification: a linear layer after the pooler (tanh) of the "
       "first "
       "token.\n"
       "A checkpoint without pooler, as masked training leaves it, gets a new one; a new classifier begins "
       "at "
       "zero.\n"
       "Pairs of texts, several classes of a text and regression are not offered.\n");

static const char activations_text[] =
    /* xgettext:no-c-format */
    N_(".Sh ACTIVATIONS\n"
       "With a large batch, most of the memory holds the values that blocks save between forward and "
       "backward.\n"
       "With\n.Ic train.save_activations No minimal\nblocks save only values that are expensive to "
       "recompute; "
       "the outputs of norms and activations are recomputed, bit-identical.\n.Pp\n"
       ".Cm 8bit\nsaves the values before the activation of the feed-forward in 8 bits, and recomputes the "
       "output "
       "of attention from queries, keys and values.\n"
       "Each group of 64 values has a scale, and its largest value is stored separately in bf16.\n"
       "Values are rounded with a dither, which is subtracted when they are read.\n"
       "This changes the numbers of a run: the cosine of each matrix's gradient to that of\n.Cm minimal\nis "
       "at "
       "least 0.9999\n.Pq test Em golden_towers ,\nand 0.99996 with one hidden unit of each 64 that is 30, "
       "100 "
       "or 300 times the others\n.Pq test Em tower_outliers .\n"
       "With two such units in one group of 64, the scale is that of the second one, and precision is lost.\n"
       "Before the largest value was stored separately, the loss of three pairs of models and five seeds "
       "differed "
       "by at most 0.11 % (p .08 and more)\n.Pq Pa tests/bench/RESULTS.md .\n.Pp\n"
       "The residual stream is fp32 during a pass, as under PyTorch's autocast to bf16; it occupies the "
       "buffer "
       "of "
       "its own gradient.\n"
       "Backward, and a recomputed block, read the normalized stream in fp16, with the mean and deviation of "
       "each "
       "row in fp32.\n"
       "Outliers of 100 to 3,000 times in a channel of the stream, a token, a hidden unit or a LayerNorm "
       "gamma "
       "have the same effect as with autocast.\n"
       "Errors of gradients of pre-norm towers of width 256 were 0.5 to 1.6 times those of autocast\n.Pq "
       "test "
       "Em "
       "tower_outliers .\n"
       "A post-norm tower multiplies the stream itself, rounded to bf16.\n.Pp\n"
       "A level\n.Cm full ,\nwhich would also save the outputs of norms and activations, does not exist.\n"
       "It would take 60 % more bytes, and the passes that it saves are limited by the memory that it would "
       "read.\n"
       "With\n.Ic train.recompute No block\nonly the activations of one block are saved, and\n.Cm 8bit\nis "
       "refused.\n"
       "While blocks compute, a head or token table larger than a block leaves a part of the gradients' "
       "buffer "
       "unused.\n"
       "With released gradients, that part holds these activations, and the last block is recomputed, "
       "too.\n");

static const char rounds_text[] =
    /* xgettext:no-c-format */
    N_(".Sh MICRO-BATCHES\n"
       "With\n.Cm train.micro_batch\na step has several forward passes, whose gradients are added up.\n"
       ".Cm train.rounds\nis the order in which micro-batches and blocks follow each other.\nIt changes no "
       "bit.\n"
       ".Pp\n"
       ".Cm depth\nruns each micro-batch through all blocks and back.\n"
       "It keeps the sums of all gradients until the end of the step, and loads streamed and sharded weights "
       "for each micro-batch.\n.Pp\n"
       ".Cm breadth\nruns all micro-batches of a rank through one block before the next block.\n"
       "It keeps the sums of one block, which then steps, and loads streamed and sharded weights once per "
       "pass.\n"
       "It keeps the inputs of all blocks for all micro-batches, and recomputes the other activations as\n"
       ".Ic train.recompute No block\ndoes.\n"
       "Exact clipping, the default where gradients are accumulated, takes a second backward pass.\n"
       "A gradient that is not finite is found after other blocks have stepped, unless they are clipped "
       "exactly; "
       "the run ends as with released gradients.\n"
       "Of a tied token table, the gradients of all micro-batches are kept.\n"
       "With\n.Cm train.wave No M ,\nM micro-batches run forward and backward before the next M.\n"
       "Inputs of M micro-batches are kept, and the sums of all blocks; weights are loaded once per wave and "
       "pass, and exact clipping takes no second pass.\n"
       "In a pipeline each wave fills and drains the stages again.\n"
       "It is refused with\n.Ic optim.gradients No keep ,\n.Ic train.save_activations No 8bit\n"
       "and one micro-batch.\n.Pp\n"
       ".Cm auto\nis breadth with\n.Cm train.wave ,\nin a pipeline, and where it costs nothing: weights are "
       "streamed or sharded, blocks are recomputed, "
       "clipping is not exact, and the inputs take less memory than the sums that are saved; else depth.\n"
       "Only\n.Cm train.memory\nand\n.Ic meopt plan --fit\nchoose breadth at a cost, and waves.\n"
       "A run may be resumed with other rounds and waves.\n");

static const char head_text[] =
    /* xgettext:no-c-format */
    N_(".\\\" Made by 'meopt config man' from core/config/schema.c: change it there.\n"
       ".Dd November 23, 2026\n.Dt MEOPT.YAML 5\n.Os\n.Sh NAME\n.Nm meopt.yaml\n.Nd configuration of "
       "meopt\n.Sh DESCRIPTION\n"
       "A configuration is a YAML file of sections, each with indented keys:\n"
       ".Bd -literal -offset indent\nmodel:\n  weight_t: ../ModelWeight/teacher.pt\n  weight_s: "
       "../ModelWeight/student.pt\ndata:\n"
       "  root: ../COCO2014\noptim:\n  use_meopt: true\n.Ed\n.Pp\n"
       "Paths are relative to the YAML file, those of keys on the command line\n.Pq Ar key Ns = Ns Ar value\n"
       "to the working directory;\n.Ic meopt config set\nwrites them into the file as they are.\n"
       "A path that begins with ~/ is relative to the home directory.\n"
       "hf:OWNER/REPO, hf:OWNER/REPO@REV and hf:OWNER/REPO@REV/FILE are the snapshot of a repository of\n"
       "Hugging Face Hub in the cache that\n.Xr meopt-fetch 1\nfills, or its FILE; a run keeps the path of "
       "the commit.\nWith ms: they are those of ModelScope.\n.Pp\n"
       "Values follow the core schema of YAML 1.2.\n"
       "A value that YAML 1.1 readers, such as PyYAML, interpret differently (1e-3 is text, no is false, "
       "012 is "
       "ten)\nis accepted with a note that gives an unambiguous spelling.\n.Pp\n"
       "Unknown keys, wrong types, values out of range, duplicate keys and incompatible values are errors\n"
       "with file, line and column.\n"
       "Anchors, aliases and merges (<<) are supported, at most 1,000 of each.\nSections that begin with x- "
       "are "
       "ignored and can hold anchors.\n"
       "A file is UTF-8, has at most 4 MiB and one document.\n");

static const char end_text[] =
    N_(".Sh EXAMPLES\nThe shipped configurations are commented:\n.Dl meopt config new eva_clip\n.Sh SEE "
       "ALSO\n"
       ".Xr meopt-config 1 ,\n.Xr meopt-plan 1 ,\n.Xr meopt-train 1 ,\n.Xr meopt-optimizers 7 ,\n.Xr "
       "meopt-weights 7\n");

static int man_run(const struct arguments *args, struct error *err)
{
    (void)args;
    (void)err;
    fputs(_(head_text), stdout);
    for (size_t s = 0; s < sizeof sections / sizeof *sections; s++) {
        size_t n = strlen(sections[s][0]);
        printf(".Ss %s\n", sections[s][0]);
        printf("%s\n", _(sections[s][1]));
        printf(".Bl -tag -width Ds\n");
        for (int key = 0; key < config_key_count; key++)
            if (strncmp(config_keys[key].name, sections[s][0], n) == 0 && config_keys[key].name[n] == '.')
                put_key(key);
        printf(".El\n");
    }
    fputs(_(images_text), stdout);
    fputs(_(classes_text), stdout);
    fputs(_(evaluation_text), stdout);
    fputs(_(tokens_text), stdout);
    fputs(_(activations_text), stdout);
    fputs(_(rounds_text), stdout);
    fputs(_(end_text), stdout);
    return 0;
}

const struct command cmd_config_man = {
    .name = "config man",
    .operands = "",
    .summary = "print the page meopt.yaml(5)",
    .hidden = true,
    .run = man_run,
};
