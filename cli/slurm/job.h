/* A job of Slurm, as scontrol prints it. Works with Slurm 20.11 and later, without slurmdbd. */
#ifndef MEOPT_CLI_SLURM_JOB_H
#define MEOPT_CLI_SLURM_JOB_H

#include "cli/slurm/tool.h"

enum { SLURM_SECONDS = 10 }; /* for an answer of Slurm */

struct slurm_job {
    char id[64];              /* as squeue has it: "4711", or "4712_3" of an array */
    char cluster[96];         /* "": that of this machine */
    char number[24];          /* of the job or of the whole array: "4712" */
    char task[16];            /* "": no array */
    char name[256], user[96]; /* every text is printable */
    char state[24], reason[160], partition[96];
    char nodes[160]; /* names; "": not allocated yet */
    char node_count[24], task_count[24];
    char submitted[24], start[24]; /* local times; start: the expected one. "": unknown */
    char restarts[16];
    char gres[96];      /* of a node */
    char command[4096]; /* the submitted script */
    char output[1024];  /* file of its output */
};

/* Splits "4711", "4711_2" or "4711_2@cluster" into number, task, id and cluster. false: none of these. */
bool slurm_job_parse_id(struct slurm_job *job, const char *word);
/* The command that asks for the job. It belongs to the job. */
struct slurm_command {
    const char *words[10];
};
struct slurm_command slurm_job_question(const struct slurm_job *job);
/* Reads the answer. unknown: Slurm does not know the job (any more), which is no passing failure. */
int slurm_job_read(struct slurm_job *job, const struct tool *answer, bool *unknown, struct error *err);
/* Whether the job has ended, and is not queued again. */
bool slurm_job_over(const struct slurm_job *job);
/* Whether the job waits for nodes. */
bool slurm_job_pending(const struct slurm_job *job);
/* Returns a time of the job in seconds since 1970; 0: unknown. */
double slurm_time(const char *text);

/* Returns the submitted script, malloc'ed; NULL with err. Slurm gives it to the owner of the job; others read
 * the file that was submitted. */
char *slurm_job_script(const struct slurm_job *job, struct error *err);

#endif
