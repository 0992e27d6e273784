/* A credential plugin: prints the token in /etc/mcproxy/token, and writes down what it was started with. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

int main(void)
{
    char token[8192] = "";
    FILE *note = fopen("/tmp/plugin.making", "w"), *file = fopen("/etc/mcproxy/token", "r");
    if (!note || !file || !fgets(token, sizeof token, file))
        return 1;
    token[strcspn(token, "\n")] = '\0';
    for (char **each = environ; *each; each++)
        fprintf(note, "%s\n", *each);
    fclose(note);
    rename("/tmp/plugin.making", "/tmp/plugin.environ");
    printf("{\"apiVersion\": \"client.authentication.k8s.io/v1\", \"kind\": \"ExecCredential\", \"status\": {\"token\": \"%s\"}}\n",
           token);
    return 0;
}
