/* Simulated steps of many ranks, compared with numbers computed by hand (core/plan/simulate.h). */
#include "core/plan/simulate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { GROUPS = 10 };

static void near(double found, double expected)
{
    double apart = found > expected ? found - expected : expected - found;
    if (apart > 1e-12 + 1e-12 * expected) fail_msg("%.15g, expected %.15g", found, expected);
}

/* 1 s, half of it backward and nothing for the student's forward pass; 1 GB/s and 1 ms. */
static const struct simulated_speed slow = {1, 0.5, 0, 1e9, 0, 8, 1e-3, false, 0};
static struct simulated_group groups[GROUPS];

/* Returns a schedule of 4 ranks with equal groups. The gradients of all are `bytes`. */
static struct simulated_schedule equal(double bytes, double sums, double weights)
{
    for (int g = 0; g < GROUPS; g++)
        groups[g] =
            (struct simulated_group){1.0 / GROUPS, bytes / GROUPS, sums / GROUPS, weights / GROUPS, 0};
    return (struct simulated_schedule){
        .order.last = GROUPS - 1, .groups = groups, .micro_count = 4, .ranks = 4, .two_gradients = true};
}

/* 4 ranks send 3/4 of the bytes: this many whole bytes are `sent` by each. */
static double whole(double sent) { return sent * 4 / 3; }

static void one_rank_needs_what_it_needs(void **state)
{
    struct simulated_schedule s = equal(1e9, 0, 0);
    struct simulated_step step = simulate_step(&s, &slow, 1);
    near(step.sums_s, 0);
    near(step.step_s, 1);
}

static void reductions_shorter_than_backward_are_hidden(void **state)
{
    /* 100 MB are 0.1 s, and 10 * 3 ms: c = 0.013, b = 0.05 */
    struct simulated_schedule s = equal(whole(1e8), 0, 0);
    struct simulated_step step = simulate_step(&s, &slow, 4);
    near(step.sent_bytes, 1e8);
    near(step.sums_s, 0.13);
    near(step.compute_s, 1);
    near(step.step_s, 0.5 + 10 * 0.05 + 0.013);
}

static void reductions_that_are_longer_decide(void **state)
{
    struct simulated_schedule s = equal(whole(2e9), 0, 0); /* c = 0.203 */
    near(simulate_step(&s, &slow, 4).step_s, 0.5 + 0.05 + 10 * 0.203);
}

static void without_a_second_buffer_they_wait(void **state)
{
    struct simulated_schedule s = equal(whole(1e8), 0, 0);
    s.two_gradients = false;
    near(simulate_step(&s, &slow, 4).step_s, 1.13);
}

static void sums_and_updated_weights_are_gathered(void **state)
{
    struct simulated_schedule s = equal(whole(1e8), whole(2e8), whole(1e8));
    near(simulate_step(&s, &slow, 4).sums_s, 0.13 + 0.23);
    for (int g = 0; g < GROUPS; g++) groups[g].changed_bytes = groups[g].weight_bytes;
    s.sharded =
        true; /* weights instead of sums, after the reduction of the next group: the last two remain */
    struct simulated_step step = simulate_step(&s, &slow, 4);
    near(step.sums_s, 0.13 + 0.13);
    near(step.step_s, 0.5 + 10 * 0.05 + 0.013 + 2 * 0.013);
}

static void sharded_weights_are_gathered_in_both_passes(void **state)
{
    struct simulated_schedule s = equal(whole(1e8), 0, whole(1e8));
    struct simulated_speed speed = slow;
    speed.latency_s = 0;
    s.sharded = s.sharded_weights = s.two_weights = true;
    struct simulated_step step = simulate_step(&s, &speed, 4);
    near(step.sums_s, 0.1 + 0.1 + 0.08); /* the last two groups are still there */
    /* Forward computes nothing: the gathers last. In backward each group's weights have come while the one
     * before it computed. */
    near(step.step_s, 0.5 + 0.1 + 10 * 0.05 + 0.01);
}

static void a_second_backward_pass_halves_the_time_of_each(void **state)
{
    struct simulated_schedule s = equal(whole(1e8), 0, 0);
    s.order.twice = true; /* b = 0.025, c = 0.013: the second pass waits for the first one's last group */
    near(simulate_step(&s, &slow, 4).step_s, 0.5 + 2 * (10 * 0.025 + 0.013));
}

static void ranks_without_a_micro_batch_wait(void **state)
{
    struct simulated_schedule s = equal(whole(1e8), 0, 0);
    s.micro_count = 6; /* two rounds, the second with two ranks */
    struct simulated_step step = simulate_step(&s, &slow, 4);
    near(step.sent_bytes, 2e8);
    near(step.compute_s, 1);
    near(step.step_s, 2 * (0.25 + 10 * 0.025 + 0.013));
    near(simulate_step(&s, &slow, 8).sent_bytes, 2 * 7.0 / 8 * whole(1e8)); /* 12 micro-batches */
}

/* Two micro-batches of each rank: weights travel once per pass, and gradients of one reduce while the other
 * computes. */
static void breadth_gathers_weights_once_per_pass(void **state)
{
    struct simulated_speed speed = slow;
    struct simulated_schedule s = equal(whole(1e8), 0, whole(1e8));
    speed.latency_s = 0;
    s.micro_count = 8;
    s.sharded = s.sharded_weights = s.two_weights = true;
    near(simulate_step(&s, &speed, 4).sums_s, 2 * 0.1 + 0.1 + 3 * 0.08); /* two groups stay between passes */
    s.order.breadth = true;
    struct simulated_step step = simulate_step(&s, &speed, 4);
    near(step.sums_s, 2 * 0.1 + 0.1 + 0.08);
    near(step.step_s, 0.5 + 0.1 + 20 * 0.025 + 0.01);
}

static void a_network_is_shared_by_the_ranks_of_a_node(void **state)
{
    struct simulated_speed speed = slow;
    speed.network = 4e9;
    speed.latency_s = 0;
    struct simulated_schedule s = equal(8e9 / 7, 0, 0);
    near(simulate_step(&s, &speed, 8).sums_s, 1); /* within a node */
    s = equal(16e9 / 15, 0, 0);
    near(simulate_step(&s, &speed, 16).sums_s, 1e9 * 8 / 15 * 8 / 4e9); /* 1.0667 s: 0.5 GB/s for each */
    speed.network = 40e9;
    near(simulate_step(&s, &speed, 16).sums_s, 1); /* the rank's own link is slower */
}

static void shared_processors_slow_computing_down(void **state)
{
    struct simulated_speed speed = slow;
    struct simulated_schedule s = equal(whole(1e8), 0, 0);
    speed.slowdown = 2;
    near(simulate_step(&s, &speed, 4).step_s, 2 + 10 * 0.013); /* nothing overlaps */
}

/* Two stages, with 6 and 4 of the groups: both ends of the model are on the first one. */
static struct simulated_schedule staged(int64_t micro_count, int ranks)
{
    struct simulated_schedule s = equal(whole(1e8), 0, 0);
    s.order.breadth = true;
    s.stages = 2;
    s.ranks = ranks;
    s.micro_count = micro_count;
    return s;
}

static void stages_compute_in_turn_and_send_streams(void **state)
{
    struct simulated_speed speed = slow;
    speed.student = 0.5; /* and no teacher */
    struct simulated_schedule s = staged(1, 2);
    s.stream_bytes = 1e6; /* 1 ms, and 1 ms of latency; 8 streams in each pass, sums of one rank are free */
    near(simulate_step(&s, &speed, 2).step_s, 2 + 16 * 0.002);
    near(simulate_step(&s, &speed, 2).sent_bytes, 8e6); /* of each stage */
    s = staged(1000, 2);
    speed.latency_s = 0;
    double step = simulate_step(&s, &speed, 2).step_s;
    if (step < 1.2 * (1 - 1e-9) || step > 1.2 * 1.01)
        fail_msg("%g s, the first stage computes for 1.2 s", step);
    s = staged(4, 2); /* the bubble of formula (P - 1) / (m L / P + P - 1) is 1/21, and unequal stages wait */
    step = simulate_step(&s, &speed, 2).step_s;
    if (step < 1.2 * (1 - 1e-9) || step > 1.2 * (1 + 1 / 21.0 + 0.05))
        fail_msg("%g s with four micro-batches", step);
}

static void stages_divide_a_teacher(void **state)
{
    struct simulated_schedule s = staged(1, 2);
    struct simulated_speed speed = slow; /* half of the step is the teacher's */
    speed.latency_s = 0;
    s.teacher_groups = 4; /* on stages 0, 1, 0, 0 */
    s.teacher_stream_bytes = 1e6;
    near(simulate_step(&s, &speed, 2).step_s, 2 + 2 * 0.001);
}

/* Replicas of two stages on two nodes: equal stages are on one node, or each node has whole replicas. */
static void stages_on_different_nodes_keep_sums_in_a_node(void **state)
{
    struct simulated_schedule s = staged(8, 16);
    struct simulated_speed speed = slow;
    speed.network = 0.5e9;
    speed.latency_s = 0;
    double far = simulate_step(&s, &speed, 16).sums_s;
    speed.stages_apart = true;
    double near_by = simulate_step(&s, &speed, 16).sums_s;
    near(near_by, whole(1e8) * 0.6 * 7 / 8 / 1e9); /* the first stage's 6 of 10 groups, over 8 ranks */
    if (far < 2 * near_by) fail_msg("%g s between nodes, %g within one", far, near_by);
    s.stream_bytes = 1e6; /* 8 ranks share the network */
    assert_true(simulate_step(&s, &speed, 16).sums_s > near_by + 6 * 1e6 * 8 / 0.5e9);
}

static void shared_processors_compute_while_a_stage_waits(void **state)
{
    struct simulated_schedule s = staged(4, 4);
    struct simulated_speed speed = slow;
    speed.student = 0.5;
    speed.latency_s = 0;
    for (int g = 0; g < GROUPS; g++) s.groups[g].reduced_bytes = 0;
    speed.slowdown = 2;
    near(simulate_step(&s, &speed, 4).step_s, 2); /* four ranks on two processors, which never wait */
}

static void hundreds_of_ranks_take_no_time(void **state)
{
    struct simulated_schedule s = equal(whole(1e8), 0, 0);
    s.micro_count = 64;
    assert_true(simulate_step(&s, &slow, 512).step_s > 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_needs_what_it_needs),
        cmocka_unit_test(reductions_shorter_than_backward_are_hidden),
        cmocka_unit_test(reductions_that_are_longer_decide),
        cmocka_unit_test(without_a_second_buffer_they_wait),
        cmocka_unit_test(sums_and_updated_weights_are_gathered),
        cmocka_unit_test(sharded_weights_are_gathered_in_both_passes),
        cmocka_unit_test(a_second_backward_pass_halves_the_time_of_each),
        cmocka_unit_test(ranks_without_a_micro_batch_wait),
        cmocka_unit_test(breadth_gathers_weights_once_per_pass),
        cmocka_unit_test(a_network_is_shared_by_the_ranks_of_a_node),
        cmocka_unit_test(shared_processors_slow_computing_down),
        cmocka_unit_test(stages_compute_in_turn_and_send_streams),
        cmocka_unit_test(stages_divide_a_teacher),
        cmocka_unit_test(stages_on_different_nodes_keep_sums_in_a_node),
        cmocka_unit_test(shared_processors_compute_while_a_stage_waits),
        cmocka_unit_test(hundreds_of_ranks_take_no_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
