/* What a call answers, compared with what it is expected to: included by one file of each program. */
#ifndef EXPECT_H
#define EXPECT_H

#include <stdio.h>
#include <string.h>

#include <trefoil.h>

static int wrong;

static void expect(int line, const char *call, trefoil_status found, trefoil_status expected, const char *message)
{
    const char *last = trefoil_last_error();
    if (found != expected || (message != NULL && strstr(last, message) == NULL)) {
        printf("line %d: %s: %s \"%s\", expected %s \"%s\"\n", line, call, trefoil_status_name(found), last,
               trefoil_status_name(expected), message == NULL ? "" : message);
        wrong++;
    }
}
#define EXPECT(call, status, message) expect(__LINE__, #call, call, TREFOIL_STATUS_##status, message)
#define OK(call) EXPECT(call, OK, NULL)

#endif
