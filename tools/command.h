/* SPDX-License-Identifier: Apache-2.0 */
/* The commands. Each gets what follows its name and returns an exit code. */
#ifndef FLASHATTN_TOOLS_COMMAND_H
#define FLASHATTN_TOOLS_COMMAND_H

int command_run(int argc, char **argv);
int command_check(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_count(int argc, char **argv);
int command_info(int argc, char **argv);

#endif
