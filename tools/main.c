/* SPDX-License-Identifier: Apache-2.0 */
/* flashattn: chooses the command. */
#include "command.h"
#include "flashattn.h"
#include "message.h"
#include "options.h"
#include "terminal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"run", "compute attention on tensors in files, and draw a head's weights", command_run},
    {"check", "compare the kernels with a float64 reference, against an error budget", command_check},
    {"bench", "measure GFLOP/s, and the share of the machine's FMA peak", command_bench},
    {"count", "count what GPU kernels move and compute, in the emulator", command_count},
    {"info", "what this build and this machine can do", command_info},
};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

static void print_help(void) {
    const char *bold = style(stdout, STYLE_BOLD), *plain = style(stdout, STYLE_NONE);
    (void)printf("flashattn %s: exact attention, O = softmax(scale * Q K^T + mask) V, in memory O(N)\n\n"
                 "%sUsage%s\n"
                 "  flashattn COMMAND [OPTION ...] [FILE ...]\n"
                 "  flashattn COMMAND --help\n"
                 "  flashattn --help | --version\n\n"
                 "%sCommands%s\n",
                 fa_version_text(), bold, plain, bold, plain);
    for (size_t i = 0; i < COMMAND_COUNT; i++) (void)printf("  %-7s %s\n", commands[i].name, commands[i].summary);
    (void)printf("\n%sExamples%s\n"
                 "  flashattn run q.npy k.npy v.npy -o out.npy --causal\n"
                 "  flashattn run layer.safetensors --picture head.png --head 3\n"
                 "  flashattn check --head-dim 128 --seqlen 300 --causal\n"
                 "  flashattn bench --seqlen 512,1024,2048 --plot speed.svg\n"
                 "  flashattn count --kernel standard,v1,v2,v3 --seqlen 1024\n"
                 "  flashattn info\n\n"
                 "%sEnvironment%s\n"
                 "  FLASHATTN_NUM_THREADS  threads, where --threads is not given\n"
                 "  FLASHATTN_ISA          where --isa is not given: portable, neon, avx2, avx512, avx512_bf16, amx,\n"
                 "                         neon_bf16\n"
                 "  FLASHATTN_MACHINE      the emulated GPU that runs the kernels v1 .. v4, such as emulated-h100\n"
                 "  NO_COLOR               no colours and no bold text\n\n"
                 "%sExit codes%s\n"
                 "  %d  all is well\n"
                 "  %d  check: an error is over its budget\n"
                 "  %d  the command line is wrong\n"
                 "  %d  a file cannot be read, understood or written\n"
                 "  %d  the library refused the request, or failed\n",
                 bold, plain, bold, plain, bold, plain, EXIT_CODE_OK, EXIT_CODE_CHECK_FAILED, EXIT_CODE_USAGE,
                 EXIT_CODE_FILE, EXIT_CODE_LIBRARY);
}

/* A full disk shows only when buffers are written out. */
static int finish_output(int code) {
    int failed = ferror(stdout);
    errno = 0;
    if (fflush(stdout) != 0) failed = 1;
    if (failed && code == EXIT_CODE_OK)
        return fail_file("standard output cannot be written: %s", errno != 0 ? strerror(errno) : "an earlier error");
    return code;
}

int main(int argc, char **argv) {
    if (argc < 2) return fail_usage("no command is given");
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help();
        return finish_output(EXIT_CODE_OK);
    }
    if (strcmp(name, "--version") == 0) {
        (void)printf("flashattn %s\n", fa_version_text());
        return finish_output(EXIT_CODE_OK);
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(commands[i].name, name) != 0) continue;
        message_set_command(name);
        return finish_output(commands[i].run(argc - 2, argv + 2));
    }
    return fail_usage("%s is not a command; the commands are run, check, bench and info", name);
}
