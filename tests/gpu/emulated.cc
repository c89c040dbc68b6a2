/* Emulated GPU kernels against the CPU operations of the same name, over odd shapes, for this wave width. */
#include "tests/gpu/emulate_run.h"

#include "kernels/attention_shape.h"
#include "kernels/gpu/vendor.h"
extern "C" {
#include "kernels/cpu/ops.h"
}

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

static int failures;

static std::vector<float> noise(size_t n, uint32_t seed)
{
    std::vector<float> v(n);
    for (float &x : v) {
        seed = seed * 1664525u + 1013904223u;
        x = (float)(int32_t)(seed >> 8 & 0xFFFF) / 32768.0f - 1.0f;
    }
    return v;
}

template <class... A> static void launch(const char *name, int64_t x, int64_t y, int threads, A... values)
{
    const emulate::kernel *k = emulate::find(name);
    if (!k) {
        printf("no kernel %s\n", name);
        exit(1);
    }
    void *arguments[] = {&values...};
    int64_t grid[3] = {x, y, 1};
    emulate::run(k, grid, threads, arguments);
}

static void same(const char *name, const std::vector<float> &a, const std::vector<float> &b, double tolerance)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < a.size(); i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    double error = size > 0 ? std::sqrt(difference / size) : std::sqrt(difference);
    if (!(error <= tolerance)) failures++;
    printf("%-28s %.1e%s\n", name, error, error <= tolerance ? "" : "  FAILED");
}

/* fp32 sums of n terms in another order: n ulps at most, sqrt(n) typically */
static double bound(int64_t n) { return 6e-8 * (8 + 4 * std::sqrt((double)n)); }

/* x rounded to bf16, there and in the copy */
static std::vector<bf16> rounded(std::vector<float> &x)
{
    std::vector<bf16> half(x.size());
    for (size_t i = 0; i < x.size(); i++) {
        store(half.data(), (int64_t)i, x[i]);
        x[i] = load(half.data(), (int64_t)i);
    }
    return half;
}

static void layernorm(int64_t R, int64_t D)
{
    auto x = noise((size_t)(R * D), 1), w = noise((size_t)D, 2), b = noise((size_t)D, 3),
         g = noise((size_t)(R * D), 4);
    std::vector<float> y(x.size()), m((size_t)R), r((size_t)R), dx(x.size()), dw((size_t)D), db((size_t)D);
    auto y2 = y, m2 = m, r2 = r, dx2 = dx, dw2 = dw, db2 = db;
    const cpu_ops *cpu = cpu_ops_select();
    struct layernorm forward = {DTYPE_F32, DTYPE_F32, x.data(),  D,         w.data(),
                                b.data(),  y2.data(), m2.data(), r2.data(), R,
                                D,         1e-6f,     DTYPE_F32, nullptr,   false};
    cpu->layernorm_forward(&forward);
    launch("layernorm_forward_f32_f32_f32", R, 1, 128, (const float *)x.data(), D, (const float *)w.data(),
           (const float *)b.data(), y.data(), m.data(), r.data(), (float *)nullptr, D, 1e-6f, 0);
    same("layernorm_forward", y, y2, bound(D));
    std::vector<float> shares(row_shares_bytes(2 * D) / sizeof(float)), partial((size_t)(8 * 2 * D));
    layernorm_gradient backward = {DTYPE_F32, DTYPE_F32, g.data(),   x.data(), D,          w.data(),
                                   m2.data(), r2.data(), dx2.data(), D,        dw2.data(), db2.data(),
                                   R,         D,         nullptr,    nullptr,  false};
    cpu->layernorm_backward(&backward, shares.data());
    auto backwards = [&](const std::vector<float> &given, float *gradient, float *instead) {
        launch("layernorm_backward_f32_f32", (int64_t)4, 1, 128, (const float *)given.data(),
               (const float *)x.data(), D, (const float *)w.data(), (const float *)m.data(),
               (const float *)r.data(), gradient, D, instead, (float *)nullptr, (float *)nullptr,
               (const float *)nullptr, partial.data(), R, D, (const float *)nullptr, (int64_t)1, 0);
    };
    backwards(g, dx.data(), nullptr);
    launch("add_shares", (D + 127) / 128, 2, 128, (const float *)partial.data(), dw.data(), db.data(),
           (float *)nullptr, (int64_t)4, D);
    same("layernorm_backward dx", dx, dx2, bound(D) * 4);
    same("layernorm_backward dweight", dw, dw2, bound(R) * 4);
    same("layernorm_backward dbias", db, db2, bound(R) * 4);
    auto to = g, to2 = g; /* in dy's place */
    backward.dy = backward.to = to2.data();
    cpu->layernorm_backward(&backward, shares.data());
    backwards(to, nullptr, to.data());
    same("layernorm_backward to", to, to2, bound(D) * 4);
}

static void rotation(int64_t B, int64_t N, int64_t H, int64_t dh, int64_t skip)
{
    auto table = noise((size_t)((N - skip) * dh), 13);
    const cpu_ops *cpu = cpu_ops_select();
    for (int half = 0; half < 2; half++)
        for (int inverse = 0; inverse < 2; inverse++) {
            auto x = noise((size_t)(B * N * 3 * H * dh), 14), x2 = x;
            struct rotation o = {DTYPE_F32, x2.data(), table.data(), B,       N, H, H, dh,
                                 skip,      half != 0, inverse != 0, nullptr, 0};
            cpu->rotate(&o);
            launch("rotate_f32", 3, 1, 128, x.data(), (const float *)table.data(), (const int32_t *)nullptr,
                   B, N, H, H, dh, dh, skip, half, inverse);
            same("rotate", x, x2, bound(2));
        }
}

static void row_mean(int64_t B, int64_t N, int64_t D, int64_t skip)
{
    auto x = noise((size_t)(B * N * D), 15), y = noise((size_t)(B * D), 16), y2 = y, dx = x, dx2 = x;
    const cpu_ops *cpu = cpu_ops_select();
    struct row_mean forward = {DTYPE_F32, x.data(), y2.data(), B, N, D, skip};
    struct row_mean_gradient backward = {DTYPE_F32, y.data(), dx2.data(), B, N, D, skip};
    cpu->row_mean_backward(&backward);
    launch("row_mean_backward_f32", 3, 1, 128, (const float *)y.data(), dx.data(), B, N, D, skip);
    cpu->row_mean_forward(&forward);
    launch("row_mean_forward_f32", 2, 1, 128, (const float *)x.data(), y.data(), B, N, D, skip);
    same("row_mean_backward", dx, dx2, bound(2));
    same("row_mean_forward", y, y2, bound(N));
}

static void attention(int64_t B, int64_t N, int64_t H, int64_t dh)
{
    auto qkv = noise((size_t)(B * N * 3 * H * dh), 5), g = noise((size_t)(B * N * H * dh), 6);
    auto qkv_half = rounded(qkv), g_half = rounded(g);
    std::vector<float> out(g.size()), lse((size_t)(B * H * N)), d(qkv.size()), delta(lse.size());
    auto out2 = out, lse2 = lse, d2 = d;
    const cpu_ops *cpu = cpu_ops_select();
    void *scratch = aligned_alloc(64, (attention_scratch(N, dh, 1) + 63) & ~(size_t)63);
    struct attention forward = {DTYPE_F32, qkv.data(), out2.data(), lse2.data(), B,       N,       H, H,
                                dh,        false,      false,       0,           nullptr, nullptr, 0};
    attention_gradient backward = {forward, g.data(), d2.data()};
    attention_shape shape = {N, H, H, dh, 0, 0, nullptr, nullptr, 0};
    cpu->attention_forward(&forward, scratch, 1);
    cpu->attention_backward(&backward, scratch, 1);
    free(scratch);
    int64_t tiles = (N + 15) / 16;
    launch("attention_forward_f32", tiles, B * H, 256, (const float *)qkv.data(), out.data(), lse.data(),
           shape);
    same("attention_forward", out, out2, bound(N + dh));
    same("attention_forward lse", lse, lse2, bound(N + dh));
    launch("attention_delta_f32", 2, 1, 128, (const float *)out.data(), (const float *)g.data(), delta.data(),
           B, N, H, dh);
    launch("attention_backward_q_f32", tiles, B * H, 256, (const float *)qkv.data(),
           (const float *)lse.data(), (const float *)delta.data(), (const float *)g.data(), d.data(), shape);
    launch("attention_backward_kv_f32", tiles, B * H, 256, (const float *)qkv.data(),
           (const float *)lse.data(), (const float *)delta.data(), (const float *)g.data(), d.data(), shape);
    same("attention_backward", d, d2, bound(N + dh) * 8);

    /* in bf16: what is rounded on the way, each time by 2^-8 at most, is the probabilities and `out`; then
     * `out` in delta, the gradients of scores and those of q, k, v */
    std::vector<bf16> out_half(g.size()), d_half(qkv.size());
    launch("attention_forward_bf16", tiles, B * H, 256, (const bf16 *)qkv_half.data(), out_half.data(),
           lse.data(), shape);
    launch("attention_delta_bf16", 2, 1, 128, (const bf16 *)out_half.data(), (const bf16 *)g_half.data(),
           delta.data(), B, N, H, dh);
    launch("attention_backward_q_bf16", tiles, B * H, 256, (const bf16 *)qkv_half.data(),
           (const float *)lse.data(), (const float *)delta.data(), (const bf16 *)g_half.data(), d_half.data(),
           shape);
    launch("attention_backward_kv_bf16", tiles, B * H, 256, (const bf16 *)qkv_half.data(),
           (const float *)lse.data(), (const float *)delta.data(), (const bf16 *)g_half.data(), d_half.data(),
           shape);
    for (size_t i = 0; i < out.size(); i++) out[i] = load(out_half.data(), (int64_t)i);
    for (size_t i = 0; i < d.size(); i++) d[i] = load(d_half.data(), (int64_t)i);
    same("attention_forward bf16", out, out2, 2 * 0x1p-8);
    same("attention_forward bf16 lse", lse, lse2, bound(N + dh));
    same("attention_backward bf16", d, d2, 4 * 0x1p-8);
}

/* Products of bf16 are exact in fp32, so sums of them have the bound of fp32. */
static void gemm(int64_t m, int64_t n, int64_t k)
{
    for (int ta = 0; ta < 2; ta++)
        for (int tb = 0; tb < 2; tb++) {
            auto a = noise((size_t)(m * k), 7), b = noise((size_t)(k * n), 8), bias = noise((size_t)n, 9),
                 c = noise((size_t)(m * n), 10), expected = c, half = c;
            auto a_half = rounded(a), b_half = rounded(b);
            for (int64_t i = 0; i < m; i++)
                for (int64_t j = 0; j < n; j++) {
                    double sum = 0;
                    for (int64_t p = 0; p < k; p++)
                        sum += (double)a[(size_t)(ta ? p * m + i : i * k + p)] *
                               b[(size_t)(tb ? j * k + p : p * n + j)];
                    float &e = expected[(size_t)(i * n + j)];
                    e = (float)(0.5 * sum + 2.0 * e + bias[(size_t)j]);
                }
            launch("gemm_f32_f32", (n + 63) / 64, (m + 63) / 64, 256, (const float *)a.data(),
                   (const float *)b.data(), c.data(), (const float *)bias.data(), m, n, k, ta ? m : k,
                   tb ? k : n, n, ta, tb, 0.5f, 2.0f);
            same("gemm", c, expected, bound(k));
            launch("gemm_bf16_f32", (n + 63) / 64, (m + 63) / 64, 256, (const bf16 *)a_half.data(),
                   (const bf16 *)b_half.data(), half.data(), (const float *)bias.data(), m, n, k, ta ? m : k,
                   tb ? k : n, n, ta, tb, 0.5f, 2.0f);
            same("gemm bf16", half, expected, bound(k));
        }
}

static void elements(int64_t R, int64_t F)
{
    auto h = noise((size_t)(R * 2 * F), 11), dy = noise((size_t)(R * F), 12);
    for (float &x : h) x *= 4;
    std::vector<float> y(dy.size()), d(h.size());
    auto y2 = y, d2 = d;
    const cpu_ops *cpu = cpu_ops_select();
    struct activation_value value = {DTYPE_F32, ACTIVATION_GELU, h.data(), nullptr, y2.data(), R, F};
    cpu->activation_forward(&value);
    launch("gelu_forward_f32", 2, 1, 128, (const float *)h.data(), (const float *)nullptr, y.data(), R, F);
    same("gelu_forward", y, y2, 1e-6);
    struct activation_gradient o = {
        DTYPE_F32, ACTIVATION_QUICK_GELU, dy.data(), h.data(), nullptr, d2.data(), nullptr, nullptr, R, F};
    auto backward = [&](const char *name) {
        launch(name, (F + 127) / 128, 2, 128, (const float *)dy.data(), (const float *)h.data(),
               (const float *)nullptr, d.data(), (float *)nullptr, (float *)nullptr, R, F);
    };
    value.kind = ACTIVATION_QUICK_GELU;
    cpu->activation_forward(&value);
    cpu->activation_backward(&o, nullptr);
    launch("quick_gelu_forward_f32", 2, 1, 128, (const float *)h.data(), (const float *)nullptr, y.data(), R,
           F);
    backward("quick_gelu_backward_f32");
    same("quick_gelu_forward", y, y2, 1e-6);
    same("quick_gelu_backward", d, d2, 1e-6);
    o.kind = ACTIVATION_GELU_TANH;
    value.kind = ACTIVATION_GELU_TANH;
    cpu->activation_forward(&value);
    cpu->activation_backward(&o, nullptr);
    launch("gelu_tanh_forward_f32", 2, 1, 128, (const float *)h.data(), (const float *)nullptr, y.data(), R,
           F);
    backward("gelu_tanh_backward_f32");
    same("gelu_tanh_forward", y, y2, 1e-6);
    same("gelu_tanh_backward", d, d2, 1e-6);
    o.kind = ACTIVATION_TANH;
    value.kind = ACTIVATION_TANH;
    cpu->activation_forward(&value);
    cpu->activation_backward(&o, nullptr);
    launch("tanh_forward_f32", 2, 1, 128, (const float *)h.data(), (const float *)nullptr, y.data(), R, F);
    backward("tanh_backward_f32");
    same("tanh_forward", y, y2, 1e-6);
    same("tanh_backward", d, d2, 1e-6);
    o.kind = ACTIVATION_SWIGLU;
    value.kind = ACTIVATION_SWIGLU;
    cpu->activation_forward(&value);
    cpu->activation_backward(&o, nullptr);
    launch("swiglu_forward_f32", 2, 1, 128, (const float *)h.data(), (const float *)nullptr, y.data(), R, F);
    backward("swiglu_backward_f32");
    same("swiglu_forward", y, y2, 1e-6);
    same("swiglu_backward", d, d2, 1e-6);
}

int main()
{
    printf("wave of %d\n", WAVE);
    layernorm(1, 5);
    layernorm(37, 177);
    rotation(2, 7, 3, 8, 1);
    rotation(1, 5, 2, 20, 3);
    row_mean(3, 9, 70, 2);
    row_mean(1, 1, 5, 0);
    attention(2, 17, 2, 32);
    attention(1, 33, 1, 88);
    attention(1, 5, 3, 80);
    attention(1, 150, 1, 121);
    gemm(1, 1, 1);
    gemm(65, 70, 33);
    gemm(80, 128, 72);
    elements(3, 131);
    printf("%d failures\n", failures);
    return failures != 0;
}
