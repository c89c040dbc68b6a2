/* Combinations of the keys of images: see value.h. */
#include "core/base/translate.h"
#include "core/config/value.h"

#include <math.h>
#include <stdio.h>

void images_check(const char *section, const struct config_images *images, combination_bad bad, void *context)
{
    const struct {
        const char *name, *text, *hint;
        double above; /* the lower bound of each of the three */
    } lists[] = {{"mean", images->mean, "as in 0.485, 0.456, 0.406", -HUGE_VAL},
                 {"std", images->std, "as in 0.229, 0.224, 0.225", 0}};
    char key[64], sentence[240];
    for (size_t i = 0; i < 2; i++) {
        double v[3];
        const char *text = lists[i].text;
        bool fine =
            config_three(text, v) && v[0] > lists[i].above && v[1] > lists[i].above && v[2] > lists[i].above;
        if (!*text || fine) continue;
        snprintf(key, sizeof key, "%s.%s", section, lists[i].name);
        snprintf(sentence, sizeof sentence, _("%s is '%.60s', expected three numbers%s"), key, text,
                 lists[i].above < 0 ? "" : " above 0");
        bad(context, key, true, lists[i].hint, sentence);
    }
    snprintf(key, sizeof key, "%s.crop_pct", section);
    if (images->crop_pct > 0 && images->crop_pct < 0.1) {
        snprintf(sentence, sizeof sentence, _("%s is %g, expected 0.1 to 1"), key, images->crop_pct);
        bad(context, key, true, "0.875 resizes 224 pixels to 256 before the crop", sentence);
    }
    snprintf(key, sizeof key, "%s.resize_as", section);
    enum data_interpolation filter = images->interpolation;
    bool tensors = images->resize_as == DATA_RESIZE_AS_HF || images->resize_as == DATA_RESIZE_AS_HF_FLOAT;
    if (tensors && filter > DATA_INTERPOLATION_BILINEAR && filter != DATA_INTERPOLATION_LANCZOS) {
        snprintf(sentence, sizeof sentence, _("%s is %s, which has no filter %s"), key,
                 data_resize_as_names[images->resize_as], data_interpolation_names[filter]);
        bad(context, key, true, "pil and hf_pil have all filters", sentence);
    }
}
