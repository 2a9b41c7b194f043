/* A stand-in for NVIDIA's libnvidia-ml: the cards that FAKE_CARDS lists, "name,MB,8.6;name,MB,9.0".
 * tests/simulated_driver.py compiles it, so that vLLM's own code asks it what a driver would say. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2 };

typedef struct {
    char name[96];
    unsigned long long mb;
    int major, minor;
} Card;

typedef struct {
    unsigned long long total, free, used;
} Memory;

static Card cards[16];
static unsigned count;

int nvmlInitWithFlags(unsigned flags)
{
    const char *at = getenv("FAKE_CARDS");
    (void)flags;
    for (count = 0; at && *at && count < 16; count++) {
        Card *card = &cards[count];
        if (sscanf(at, "%95[^,],%llu,%d.%d", card->name, &card->mb, &card->major, &card->minor) != 4)
            break;
        at = strchr(at, ';');
        at = at ? at + 1 : "";
    }
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int result) { return result ? "no such card" : "success"; }

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    snprintf(version, length, "580.95.05");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *found)
{
    *found = count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Card **card)
{
    if (index >= count)
        return INVALID_ARGUMENT;
    *card = &cards[index];
    return SUCCESS;
}

int nvmlDeviceGetName(Card *card, char *name, unsigned length)
{
    snprintf(name, length, "%s", card->name);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Card *card, Memory *memory)
{
    memory->total = memory->free = card->mb << 20;
    memory->used = 0;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(Card *card, int *major, int *minor)
{
    *major = card->major;
    *minor = card->minor;
    return SUCCESS;
}

int nvmlDeviceGetUUID(Card *card, char *uuid, unsigned length)
{
    snprintf(uuid, length, "GPU-%d", (int)(card - cards));
    return SUCCESS;
}
