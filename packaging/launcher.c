/* The head of the binary: unpacks what follows it, once, and runs the interpreter in it as `mcproxy`.
 *
 * File: this program, statically linked | zstd frame with the tree's files | struct trailer.
 * The tree lies in FOLDER/unpacked-HASH, where HASH is that of the tree, so another version has another folder, and a
 * process of this version goes on with its own. It is unpacked beside that and renamed, so it is there wholly or not at all.
 *
 * What is run from a folder must have been written by root or by the own user, and nobody else may be able to change it:
 * each folder on the way to it belongs to one of the two, and only they can write there (or it is sticky, as /tmp).
 *
 * No process stays between the service manager and the daemon, and no variable of the environment is set or changed.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#define MAGIC "mcproxy1"
#define FAILED 1
#define SHARED "/var/cache/mcproxy" /* root's, for all users */
#define STALE (24 * 3600)           /* seconds that a folder of another version, in which nothing runs, is kept */

struct trailer { /* at the end of the file; little endian, as all machines that it is built for */
    uint64_t start, length; /* of the zstd frame */
    char hash[32];
    char magic[8];
};

/* Before each entry of the unpacked stream. Then: the path, relative; then a file's contents, or a link's target. */
struct entry {
    uint64_t length;
    uint32_t mode; /* as in st_mode: S_IFREG, S_IFLNK or S_IFDIR and permissions */
    uint32_t path;
};

static char reasons[4096]; /* why folders do not do, for the one message */

static void note(const char *folder, const char *format, ...)
{
    size_t used = strlen(reasons);
    char why[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    snprintf(reasons + used, sizeof reasons - used, "%s%s: %s", used ? "; " : "", folder, why);
}

static void remove_tree(const char *path);
static const char *unfinished; /* what is being unpacked */

static int fail(const char *what, const char *why)
{
    if (unfinished)
        remove_tree(unfinished);
    fprintf(stderr, "mcproxy: %s: %s\n", what, why);
    exit(FAILED);
}

/* -- what the interpreter needs of the host; binary.py defines LOADER and GLIBC as it finds them in the tree -- */

/* Whether `text` is in the file; -1 if the file cannot be read. */
static int contains(const char *path, const char *text, size_t length)
{
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC), found = -1;
    if (file >= 0 && !fstat(file, &status) && status.st_size > 0) {
        void *data = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
        if (data != MAP_FAILED) {
            found = memmem(data, (size_t)status.st_size, text, length) != NULL;
            munmap(data, (size_t)status.st_size);
        }
    }
    if (file >= 0)
        close(file);
    return found;
}

/* The kernel's error for a missing loader would name the interpreter, which is there, and the loader's a symbol. The
 * library's versions are names in it; where it lies elsewhere than its loader (NixOS), the loader alone is judged. */
static void need_glibc(void)
{
    static const char version[] = "\0GLIBC_" GLIBC, private[] = "GLIBC_PRIVATE";
    char library[PATH_MAX + 16];
    if (!realpath(LOADER, library))
        fail("this system has no GNU C library (glibc): there is no " LOADER,
             "this program needs glibc " GLIBC " or newer; on Alpine, and wherever else the C library is musl, run it in a "
             "container of a system that has it");
    strcpy(strrchr(library, '/'), "/libc.so.6");
    int found = contains(library, version, sizeof version);
    if (found == 0)
        fail(library, "is older than glibc " GLIBC ", which this program needs: build it on a system as old as this one");
    if (found < 0 && !contains(LOADER, private, sizeof private))
        fail(LOADER, "is not the GNU C library's (glibc), and this program needs that, " GLIBC " or newer; a library that "
                     "imitates it does not do");
}

/* -- folders -- */

/* Whether nobody but root and this user can put something at `path`, or replace it; `path` is absolute and exists.
 * It has no link in it (`realpath`): what a link names could be trusted now, and another when it is used. */
static int trusted(const char *path)
{
    char real[PATH_MAX], part[PATH_MAX];
    struct stat status;
    if (!realpath(path, real))
        return note(path, "%s", strerror(errno)), 0;
    if (strcmp(real, path))
        return note(path, "has become a link"), 0;
    for (char *end = real;; end++) {
        if (*end != '/' && *end != '\0')
            continue;
        size_t length = end == real ? 1 : (size_t)(end - real);
        memcpy(part, real, length);
        part[length] = '\0';
        if (lstat(part, &status))
            return note(path, "%s: %s", part, strerror(errno)), 0;
        if (status.st_uid != 0 && status.st_uid != geteuid())
            return note(path, "%s belongs to user %u", part, (unsigned)status.st_uid), 0;
        if ((status.st_mode & 022) && !(status.st_mode & S_ISVTX) &&
            !((status.st_mode & 022) == 020 && status.st_gid == 0))
            return note(path, "%s can be written by others", part), 0;
        if (*end == '\0' || end[1] == '\0')
            return 1;
    }
}

/* Makes `path` and what is missing above it. */
static int make_folders(const char *path, mode_t mode)
{
    char part[PATH_MAX];
    for (const char *end = path + 1;; end++) {
        if (*end != '/' && *end != '\0')
            continue;
        memcpy(part, path, (size_t)(end - path));
        part[end - path] = '\0';
        if (mkdir(part, *end ? 0755 : mode) && errno != EEXIST && errno != EROFS && errno != EACCES)
            return -1;
        if (*end == '\0')
            return access(path, W_OK | X_OK);
    }
}

static int executable(const char *folder)
{
    struct statvfs status;
    if (statvfs(folder, &status))
        return note(folder, "%s", strerror(errno)), 0;
    if (status.f_flag & ST_NOEXEC)
        return note(folder, "is mounted noexec"), 0;
    return 1;
}

static void remove_tree(const char *path)
{
    char part[PATH_MAX];
    struct stat status;
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") ||
            (size_t)snprintf(part, sizeof part, "%s/%s", path, entry->d_name) >= sizeof part)
            continue;
        if (!lstat(part, &status) && S_ISDIR(status.st_mode))
            remove_tree(part);
        else
            unlink(part);
    }
    if (folder)
        closedir(folder);
    rmdir(path);
}

/* Removes what other versions, and attempts that were killed, have left in `base`, unless something runs from it. */
static void remove_stale(const char *base, const char *own)
{
    char part[PATH_MAX];
    struct stat status;
    DIR *folder = opendir(base);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (strncmp(entry->d_name, "unpacked-", 9) && strncmp(entry->d_name, ".unpacking-", 11))
            continue;
        if ((size_t)snprintf(part, sizeof part, "%s/%s", base, entry->d_name) >= sizeof part || !strcmp(part, own))
            continue;
        int held = open(part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (held < 0)
            continue;
        if (!fstat(held, &status) && status.st_uid == geteuid() && time(NULL) - status.st_mtime > STALE &&
            !flock(held, LOCK_EX | LOCK_NB))
            remove_tree(part);
        close(held);
    }
    if (folder)
        closedir(folder);
}

/* -- unpacking -- */

struct stream {
    int file;
    uint64_t left; /* of the frame, in the file */
    ZSTD_DStream *zstd;
    ZSTD_inBuffer in;
    ZSTD_outBuffer out;
    size_t taken; /* of out */
    int ended;
    char input[1 << 16], output[1 << 17];
};

/* Returns up to `length` unpacked bytes at *data, at least one; 0 at the end. */
static size_t take(struct stream *stream, size_t length, char **data)
{
    while (stream->taken == stream->out.pos) {
        if (stream->in.pos == stream->in.size && stream->left) {
            ssize_t got = read(stream->file, stream->input,
                               stream->left < sizeof stream->input ? (size_t)stream->left : sizeof stream->input);
            if (got <= 0)
                fail("reading this program", got ? strerror(errno) : "it is cut off");
            stream->left -= (size_t)got;
            stream->in.pos = 0;
            stream->in.size = (size_t)got;
        } else if (stream->ended && stream->in.pos == stream->in.size)
            return 0;
        stream->taken = stream->out.pos = 0;
        size_t status = ZSTD_decompressStream(stream->zstd, &stream->out, &stream->in);
        if (ZSTD_isError(status))
            fail("unpacking this program", ZSTD_getErrorName(status));
        stream->ended = status == 0;
        if (!stream->ended && !stream->out.pos && stream->in.pos == stream->in.size && !stream->left)
            fail("unpacking this program", "it is cut off");
    }
    size_t there = stream->out.pos - stream->taken;
    if (there > length)
        there = length;
    *data = stream->output + stream->taken;
    stream->taken += there;
    return there;
}

/* Reads exactly `length` bytes; returns 0 if the stream has ended before the first. */
static int read_all(struct stream *stream, void *target, size_t length)
{
    char *data;
    for (size_t done = 0; done < length;) {
        size_t got = take(stream, length - done, &data);
        if (!got && !done)
            return 0;
        if (!got)
            fail("unpacking this program", "it is cut off");
        memcpy((char *)target + done, data, got);
        done += got;
    }
    return 1;
}

/* Writes the tree to `target`, which exists. Returns 0, or -1 with errno. */
static int unpack(int file, const struct trailer *trailer, const char *target)
{
    static struct stream stream;
    struct entry entry;
    char path[PATH_MAX], *data;
    int root = open(target, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0 || lseek(file, (off_t)trailer->start, SEEK_SET) < 0)
        return -1;
    stream.file = file;
    stream.left = trailer->length;
    stream.zstd = ZSTD_createDStream();
    stream.in.src = stream.input;
    stream.out.dst = stream.output;
    stream.out.size = sizeof stream.output;
    ZSTD_DCtx_setParameter(stream.zstd, ZSTD_d_windowLogMax, 27);
    while (read_all(&stream, &entry, sizeof entry)) {
        if (entry.path >= sizeof path || !read_all(&stream, path, entry.path))
            fail("unpacking this program", "it is damaged");
        path[entry.path] = '\0';
        if (S_ISDIR(entry.mode)) {
            if (mkdirat(root, path, entry.mode & 0777))
                return -1;
            continue;
        }
        if (S_ISLNK(entry.mode)) {
            char link[PATH_MAX];
            if (entry.length >= sizeof link || !read_all(&stream, link, entry.length))
                fail("unpacking this program", "it is damaged");
            link[entry.length] = '\0';
            if (symlinkat(link, root, path))
                return -1;
            continue;
        }
        int out = openat(root, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, entry.mode & 0777);
        if (out < 0)
            return -1;
        for (uint64_t left = entry.length; left;) {
            size_t got = take(&stream, left < sizeof stream.output ? (size_t)left : sizeof stream.output, &data);
            if (!got)
                fail("unpacking this program", "it is cut off");
            left -= got;
            for (size_t done = 0; done < got;) {
                ssize_t wrote = write(out, data + done, got - done);
                if (wrote < 0)
                    return close(out), -1;
                done += (size_t)wrote;
            }
        }
        if (close(out))
            return -1;
    }
    ZSTD_freeDStream(stream.zstd);
    return close(root);
}

/* Opens and locks the unpacked tree in `base`, if it is there and to be trusted; else returns -1. */
static int locked(const char *tree)
{
    int held = open(tree, O_RDONLY | O_DIRECTORY | O_NOFOLLOW); /* inherited: the interpreter holds it on */
    if (held < 0)
        return -1;
    if (!trusted(tree) || !executable(tree) || flock(held, LOCK_SH | LOCK_NB)) {
        close(held);
        return -1;
    }
    struct stat now, then; /* nobody has removed it meanwhile */
    if (stat(tree, &now) || fstat(held, &then) || now.st_ino != then.st_ino || now.st_dev != then.st_dev) {
        close(held);
        return -1;
    }
    return held;
}

/* Makes the tree in `base` unless it is there; returns it, locked, or -1 with a reason noted. Its path goes to `tree`. */
static int tree_in(const char *base, mode_t mode, int file, const struct trailer *trailer, char *tree)
{
    char making[PATH_MAX], real[PATH_MAX];
    if (base[0] != '/')
        return note(base, "is no absolute path"), -1;
    if (access(base, F_OK) && make_folders(base, mode))
        return note(base, "%s", strerror(errno)), -1;
    if (!realpath(base, real))
        return note(base, "%s", strerror(errno)), -1;
    base = real; /* links are followed once: whoever may change one has no part in what comes now */
    if (snprintf(tree, PATH_MAX, "%s/unpacked-%.32s", base, trailer->hash) >= PATH_MAX ||
        snprintf(making, sizeof making, "%s/.unpacking-%.32s-XXXXXX", base, trailer->hash) >= PATH_MAX)
        return note(base, "is too long"), -1;
    int held = locked(tree);
    if (held >= 0)
        return held;
    if (access(base, W_OK | X_OK))
        return note(base, "%s", strerror(errno)), -1;
    if (!trusted(base) || !executable(base))
        return -1;
    umask(022);
    if (!mkdtemp(making))
        return note(base, "%s", strerror(errno)), -1;
    unfinished = making;
    if (unpack(file, trailer, making) || chmod(making, 0755) || (rename(making, tree) && errno != ENOTEMPTY && errno != EEXIST)) {
        note(base, "%s", strerror(errno));
        remove_tree(making);
        unfinished = NULL;
        return -1;
    }
    unfinished = NULL;
    if (!access(making, F_OK)) /* another process was faster */
        remove_tree(making);
    remove_stale(base, tree);
    held = locked(tree);
    return held;
}

/* Finds or makes the tree in the first folder that does. */
static int find_tree(int file, const struct trailer *trailer, char *tree)
{
    char base[PATH_MAX];
    const char *chosen = getenv("MCPROXY_UNPACK_DIR"), *home = getenv("HOME"), *cache = getenv("XDG_CACHE_HOME");
    int held;
    if (chosen && *chosen)
        return tree_in(chosen, 0755, file, trailer, tree);
    if (geteuid() == 0) {
        if ((held = tree_in(SHARED, 0755, file, trailer, tree)) >= 0)
            return held;
    } else {
        if (realpath(SHARED, base) && (size_t)snprintf(tree, PATH_MAX, "%s/unpacked-%.32s", base, trailer->hash) < PATH_MAX &&
            (held = locked(tree)) >= 0)
            return held;
        if (cache && *cache == '/' && (size_t)snprintf(base, sizeof base, "%s/mcproxy", cache) < sizeof base &&
            (held = tree_in(base, 0700, file, trailer, tree)) >= 0)
            return held;
        if (home && *home == '/' && !access(home, W_OK) &&
            (size_t)snprintf(base, sizeof base, "%s/.cache/mcproxy", home) < sizeof base &&
            (held = tree_in(base, 0700, file, trailer, tree)) >= 0)
            return held;
    }
    static const char *const temporary[] = {"/var/tmp", "/tmp", "/dev/shm", NULL};
    for (const char *const *each = temporary; *each; each++) {
        snprintf(base, sizeof base, "%s/mcproxy-%u", *each, (unsigned)geteuid());
        if (!access(*each, W_OK | X_OK) && (held = tree_in(base, 0700, file, trailer, tree)) >= 0)
            return held;
    }
    return -1;
}

int main(int count, char **words)
{
    static char tree[PATH_MAX], interpreter[PATH_MAX + 16], lock[64], program[PATH_MAX + 32];
    struct trailer trailer;
    /* The daemon cannot act on these before its interpreter runs; until then they would end it. */
    if (count > 1 && !strcmp(words[1], "run")) {
        signal(SIGHUP, SIG_IGN);
        signal(SIGUSR1, SIG_IGN);
        signal(SIGUSR2, SIG_IGN);
    }
    mode_t mask = umask(022);
    umask(mask);
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (file < 0 && access("/proc/self", F_OK))
        fail("there is no /proc here", "this program reads itself by /proc/self/exe, and the daemon needs it too; in a chroot "
                                       "or container: mount -t proc proc /proc");
    if (file < 0)
        fail("/proc/self/exe", strerror(errno));
    need_glibc();
    if (lseek(file, -(off_t)sizeof trailer, SEEK_END) < 0 || read(file, &trailer, sizeof trailer) != sizeof trailer ||
        memcmp(trailer.magic, MAGIC, sizeof trailer.magic))
        fail("this program", "it is cut off: nothing is packed in it");
    strcpy(program, "mcproxy_program=");
    ssize_t length = readlink("/proc/self/exe", program + strlen(program), PATH_MAX - 1);
    if (length < 0)
        fail("/proc/self/exe", strerror(errno));
    int held = find_tree(file, &trailer, tree);
    umask(mask);
    if (held < 0) {
        fprintf(stderr, "mcproxy: no folder for its files: %s; set MCPROXY_UNPACK_DIR to one where programs may run, and "
                        "that only this user or root can change\n", reasons);
        return FAILED;
    }
    close(file);
    snprintf(interpreter, sizeof interpreter, "%s/bin/mcproxy", tree);
    snprintf(lock, sizeof lock, "mcproxy_lock=%d", held);
    char **command = calloc((size_t)count + 8, sizeof *command);
    if (!command)
        fail("memory", strerror(errno));
    int used = 0;
    command[used++] = interpreter;
    command[used++] = "-I";
    command[used++] = "-X";
    command[used++] = program;
    command[used++] = "-X";
    command[used++] = lock;
    command[used++] = "-m";
    command[used++] = "mcproxy";
    for (int each = 1; each < count; each++)
        command[used++] = words[each];
    execv(interpreter, command);
    fail(interpreter, strerror(errno));
}
