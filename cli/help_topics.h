/* What 'meopt help TOPIC' prints: one screen about a subject, with the commands to type. */
#ifndef MEOPT_CLI_HELP_TOPICS_H
#define MEOPT_CLI_HELP_TOPICS_H

struct help_topic {
    const char *name, *summary, *text;
};
extern const struct help_topic help_topics[]; /* ends with name NULL */
/* Returns the topic with this name, NULL if there is none. */
const struct help_topic *help_topic_named(const char *name);

#endif
