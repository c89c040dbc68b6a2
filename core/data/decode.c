/* Decodes JPEG (libjpeg-turbo), PNG (libpng) and WebP (libwebp) to RGB like PIL's convert("RGB"): grey
 * replicated, palettes expanded, alpha dropped, Adobe CMYK through PIL's own formula. EXIF orientation is
 * ignored; of an animation, the first frame is drawn on black. A truncated file is an error. One
 * difference: 16-bit grey keeps its high byte, like 16-bit colour, where PIL clips it to white. */
#include "core/data/list.h"
#include "core/data/data.h"

#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jpeglib.h>
#include <jerror.h>
#include <png.h>
#include <webp/decode.h>
#include <webp/demux.h>

enum { MAX_SIDE = 20000 };
static const int64_t max_pixels =
    (256 << 20) /
    3; /* 256 MiB of RGB, where PIL warns of a decompression bomb, too: a short file may claim any size */

static int allocate(struct image *image, int64_t width, int64_t height, struct error *err)
{
    if (width < 1 || height < 1 || width > MAX_SIDE || height > MAX_SIDE || width * height > max_pixels)
        return error_set(err, EXIT_FAILED, NULL,
                         "is %lld x %lld pixels, expected at most %d a side and %lld in all",
                         (long long)width, (long long)height, MAX_SIDE, (long long)max_pixels);
    image->rgb = malloc((size_t)(width * height) * 3);
    if (!image->rgb)
        return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for %lld x %lld pixels",
                         (long long)width, (long long)height);
    image->width = (int)width;
    image->height = (int)height;
    return 0;
}

struct jpeg_failure {
    struct jpeg_error_mgr manager;
    jmp_buf back;
    char text[JMSG_LENGTH_MAX];
};

static void jpeg_fail(j_common_ptr info)
{
    struct jpeg_failure *failure = (struct jpeg_failure *)(void *)info->err;
    info->err->format_message(info, failure->text);
    longjmp(failure->back, 1);
}
static void jpeg_quiet(j_common_ptr info, int level)
{
    (void)info;
    (void)level;
}
static boolean jpeg_truncated(j_decompress_ptr info)
{
    struct jpeg_failure *failure = (struct jpeg_failure *)(void *)info->err;
    snprintf(failure->text, sizeof failure->text, _("the file ends too early"));
    longjmp(failure->back, 1);
}
static void jpeg_skip(j_decompress_ptr info, long bytes)
{
    if (bytes <= 0) return;
    if ((size_t)bytes > info->src->bytes_in_buffer) jpeg_truncated(info);
    info->src->next_input_byte += bytes;
    info->src->bytes_in_buffer -= (size_t)bytes;
}
static void jpeg_nothing(j_decompress_ptr info) { (void)info; }

static uint8_t multiply255(unsigned a, unsigned b)
{
    unsigned t = a * b + 128;
    return (uint8_t)((t + (t >> 8)) >> 8);
}

static void row_to_rgb(const struct jpeg_decompress_struct *info, const uint8_t *in, uint8_t *out)
{
    for (JDIMENSION x = 0; x < info->output_width; x++, out += 3) {
        if (info->output_components == 1) out[0] = out[1] = out[2] = in[x];
        else {
            const uint8_t *p = in + 4 * x; /* CMYK, inverted with Adobe's marker and without (PIL) */
            for (int c = 0; c < 3; c++) out[c] = (uint8_t)(p[3] - multiply255((uint8_t)(255 - p[c]), p[3]));
        }
    }
}

static int decode_jpeg(struct image *image, const uint8_t *bytes, size_t size, struct error *err)
{
    struct jpeg_decompress_struct info;
    struct jpeg_failure failure;
    struct jpeg_source_mgr source = {.next_input_byte = bytes,
                                     .bytes_in_buffer = size,
                                     .init_source = jpeg_nothing,
                                     .fill_input_buffer = jpeg_truncated,
                                     .skip_input_data = jpeg_skip,
                                     .resync_to_restart = jpeg_resync_to_restart,
                                     .term_source = jpeg_nothing};
    uint8_t *volatile row = NULL;
    info.err = jpeg_std_error(&failure.manager);
    failure.manager.error_exit = jpeg_fail;
    failure.manager.emit_message = jpeg_quiet;
    if (setjmp(failure.back)) {
        jpeg_destroy_decompress(&info);
        free(row);
        image_free(image);
        return error_set(err, info.err->msg_code == JERR_OUT_OF_MEMORY ? EXIT_HOST_MEMORY : EXIT_FAILED, NULL,
                         "JPEG: %s", failure.text);
    }
    jpeg_create_decompress(&info);
    info.src = &source;
    jpeg_read_header(&info, TRUE);
    bool direct = info.jpeg_color_space != JCS_GRAYSCALE && info.num_components == 3;
    info.out_color_space = info.num_components == 1 ? JCS_GRAYSCALE : direct ? JCS_RGB : JCS_CMYK;
    info.dct_method = JDCT_ISLOW;
    int code = allocate(image, info.image_width, info.image_height, err);
    if (code) {
        jpeg_destroy_decompress(&info);
        return code;
    }
    jpeg_start_decompress(&info);
    if (!direct && !(row = malloc((size_t)info.output_width * 4))) {
        jpeg_destroy_decompress(&info);
        image_free(image);
        return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for a JPEG");
    }
    while (info.output_scanline < info.output_height) {
        uint8_t *out = image->rgb + (size_t)info.output_scanline * info.output_width * 3,
                *to = direct ? out : row;
        jpeg_read_scanlines(&info, &to, 1);
        if (!direct) row_to_rgb(&info, row, out);
    }
    free(row);
    row = NULL;
    jpeg_destroy_decompress(&info);
    return 0;
}

struct png_input {
    const uint8_t *bytes;
    size_t left;
    bool no_memory;
    char text[160];
};
static png_voidp png_memory(png_structp png, png_alloc_size_t bytes)
{
    struct png_input *in = png_get_mem_ptr(png);
    void *p = malloc(bytes);
    if (!p) in->no_memory = true;
    return p;
}
static void png_memory_free(png_structp png, png_voidp p)
{
    (void)png;
    free(p);
}
static void png_take(png_structp png, png_bytep to, size_t n)
{
    struct png_input *in = png_get_io_ptr(png);
    if (n > in->left) png_error(png, "the file ends too early");
    memcpy(to, in->bytes, n);
    in->bytes += n;
    in->left -= n;
}
static void png_fail(png_structp png, png_const_charp text)
{
    struct png_input *in = png_get_error_ptr(png);
    snprintf(in->text, sizeof in->text, "%s", text);
    longjmp(png_jmpbuf(png), 1);
}
static void png_quiet(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static int decode_png(struct image *image, const uint8_t *bytes, size_t size, struct error *err)
{
    struct png_input in = {.bytes = bytes, .left = size};
    png_structp png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &in, png_fail, png_quiet, &in,
                                               png_memory, png_memory_free);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    png_bytep *volatile rows = NULL;
    if (!info) {
        png_destroy_read_struct(&png, NULL, NULL);
        return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for a PNG");
    }
    int code = 0;
    if (setjmp(png_jmpbuf(png))) {
        image_free(image);
        code = error_set(err, in.no_memory ? EXIT_HOST_MEMORY : EXIT_FAILED, NULL, "PNG: %s", in.text);
        goto done;
    }
    png_set_user_limits(png, MAX_SIDE, MAX_SIDE);
    png_set_chunk_malloc_max(png, 64 << 20);
    png_set_read_fn(png, &in, png_take);
    png_read_info(png, info);
    png_set_palette_to_rgb(png);
    png_set_expand_gray_1_2_4_to_8(png);
    png_set_strip_16(png);
    png_set_gray_to_rgb(png);
    png_set_strip_alpha(png);
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
    code = allocate(image, png_get_image_width(png, info), png_get_image_height(png, info), err);
    if (code) goto done;
    if (png_get_rowbytes(png, info) != (size_t)image->width * 3) png_error(png, "an unusual pixel layout");
    rows = malloc((size_t)image->height * sizeof *rows);
    if (!rows) {
        in.no_memory = true;
        png_error(png, "out of memory");
    }
    for (int y = 0; y < image->height; y++) rows[y] = image->rgb + (size_t)y * (size_t)image->width * 3;
    png_read_image(png, rows);
done:
    free(rows);
    png_destroy_read_struct(&png, &info, NULL);
    return code;
}

/* Decodes one frame into its position in the image; libwebp refuses one that does not fit. */
static int decode_webp_frame(struct image *image, const uint8_t *bytes, size_t size, int x, int y,
                             struct error *err)
{
    static const char *const why[] = {[VP8_STATUS_INVALID_PARAM] = N_("it does not fit its canvas"),
                                      [VP8_STATUS_BITSTREAM_ERROR] = N_("the data are damaged"),
                                      [VP8_STATUS_UNSUPPORTED_FEATURE] = N_("of an unknown kind"),
                                      [VP8_STATUS_NOT_ENOUGH_DATA] = N_("the file ends too early")};
    WebPDecoderConfig config;
    size_t stride = (size_t)image->width * 3, at = (size_t)y * stride + (size_t)x * 3;
    if (!WebPInitDecoderConfig(&config))
        return error_set(err, EXIT_HOST_MEMORY, NULL, "libwebp is of another version");
    config.output.colorspace = MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = image->rgb + at;
    config.output.u.RGBA.stride = (int)stride;
    config.output.u.RGBA.size = stride * (size_t)image->height - at;
    VP8StatusCode status = WebPDecode(bytes, size, &config);
    if (status == VP8_STATUS_OK) return 0;
    if (status == VP8_STATUS_OUT_OF_MEMORY)
        return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for a WebP");
    bool known = status < sizeof why / sizeof *why && why[status];
    return error_set(err, EXIT_FAILED, NULL, "WebP: %s", known ? why[status] : _("cannot be decoded"));
}

static int decode_webp(struct image *image, const uint8_t *bytes, size_t size, struct error *err)
{
    WebPBitstreamFeatures features;
    VP8StatusCode status = WebPGetFeatures(bytes, size, &features);
    if (status == VP8_STATUS_NOT_ENOUGH_DATA)
        return error_set(err, EXIT_FAILED, NULL, "WebP: the file ends too early");
    if (status != VP8_STATUS_OK) return error_set(err, EXIT_FAILED, NULL, "WebP: the header is damaged");
    int code = allocate(image, features.width, features.height, err);
    if (code) return code;
    if (!features.has_animation) code = decode_webp_frame(image, bytes, size, 0, 0, err);
    else {
        WebPData data = {bytes, size};
        WebPIterator first = {0};
        WebPDemuxer *demuxer = WebPDemux(&data);
        if (!demuxer || !WebPDemuxGetFrame(demuxer, 1, &first) || !first.complete)
            code = error_set(err, EXIT_FAILED, NULL, "WebP: the animation is damaged or ends too early");
        else {
            memset(image->rgb, 0, (size_t)image->width * (size_t)image->height * 3);
            code = decode_webp_frame(image, first.fragment.bytes, first.fragment.size, first.x_offset,
                                     first.y_offset, err);
        }
        WebPDemuxReleaseIterator(&first);
        WebPDemuxDelete(demuxer);
    }
    if (code) image_free(image);
    return code;
}

/* Names a different file format by its first bytes; NULL: unknown. */
static const char *other_kind(const uint8_t *bytes, size_t size)
{
#define KIND(at, magic, name)                                                                                \
    {                                                                                                        \
        at, sizeof magic - 1, magic, name                                                                    \
    }
    static const struct {
        size_t at, bytes;
        const char *magic, *name;
    } kinds[] = {
        KIND(0, "GIF8", "a GIF"),
        KIND(0, "II*\0", "a TIFF"),
        KIND(0, "MM\0*", "a TIFF"),
        KIND(4, "ftypavi", "an AVIF"),
        KIND(4, "ftyphei", "a HEIF"),
        KIND(4, "ftypmif1", "a HEIF"),
        KIND(4, "jP  ", "a JPEG 2000"),
        KIND(0, "\xff\x4f\xff\x51", "a JPEG 2000"),
        KIND(0, "\xff\x0a", "a JPEG XL"),
        KIND(4, "JXL ", "a JPEG XL"),
        KIND(0, "%PDF", "a PDF"),
        KIND(0, "PK\3\4", "a zip"),
        KIND(0, "\x1f\x8b", "a gzip"),
        KIND(0, "<!DOCTYPE", "an HTML"),
        KIND(0, "<!doctype", "an HTML"),
        KIND(0, "<html", "an HTML"),
        KIND(0, "version https://git-lfs", "a Git LFS pointer"),
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (size >= kinds[i].at + kinds[i].bytes &&
            memcmp(bytes + kinds[i].at, kinds[i].magic, kinds[i].bytes) == 0)
            return kinds[i].name;
    return NULL;
}

int image_decode(struct image *image, const uint8_t *bytes, size_t size, struct error *err)
{
    *image = (struct image){0};
    if (size >= 3 && bytes[0] == 0xFF && bytes[1] == 0xD8 && bytes[2] == 0xFF)
        return decode_jpeg(image, bytes, size, err);
    if (size >= 8 && png_sig_cmp((png_bytep)(uintptr_t)bytes, 0, 8) == 0)
        return decode_png(image, bytes, size, err);
    if (size >= 12 && memcmp(bytes, "RIFF", 4) == 0 && memcmp(bytes + 8, "WEBP", 4) == 0)
        return decode_webp(image, bytes, size, err);
    if (size == 0) return error_set(err, EXIT_FAILED, NULL, "is empty");
    const char *other = other_kind(bytes, size);
    return other ? error_set(err, EXIT_FAILED, NULL, "is %s file, neither JPEG, PNG nor WebP", other)
                 : error_set(err, EXIT_FAILED, NULL, "is neither JPEG, PNG nor WebP");
}

/* Turns planes of red, green and blue into pixels. */
static int decode_planes(struct image *image, const uint8_t *bytes, size_t size, int side, struct error *err)
{
    size_t plane = (size_t)side * (size_t)side;
    if (size != 3 * plane)
        return error_set(err, EXIT_FAILED, NULL, "has %zu bytes, expected %zu", size, 3 * plane);
    int code = allocate(image, side, side, err);
    for (size_t i = 0; i < 3 * plane && !code; i++) image->rgb[i] = bytes[i % 3 * plane + i / 3];
    return code;
}

int image_load(struct image *image, const char *root, const char *name, struct error *err)
{
    struct image_place place = image_place(name);
    char *bytes = NULL;
    size_t size = 0;
    *image = (struct image){0};
    int code = image_read(root, name, &bytes, &size, err), reason = code ? errno : 0;
    if (!code)
        code = place.planar ? decode_planes(image, (const uint8_t *)bytes, size, place.planar, err)
                            : image_decode(image, (const uint8_t *)bytes, size, err);
    free(bytes);
    errno = reason;
    return code;
}

void image_free(struct image *image)
{
    free(image->rgb);
    *image = (struct image){0};
}
