// A Vulkan layer between wgpu and RADV's null device, which compiles for a chosen GPU and executes nothing. The null device
// lacks what wgpu wants of any device, so this layer
//   - hides VK_EXT_memory_budget, whose function is NULL there;
//   - invents memory heaps, of which the null device has none;
//   - lets a binary semaphore stand in for a timeline semaphore, and keeps its value;
//   - records no command, and says of every submit that it is done;
//   - asks for waves of NULL_DEVICE_WAVE invocations, if that is set: RADV's own option for waves of 32 leaves out every kernel
//     that uses subgroups.
// It also writes to standard error, among what RADV writes there, which pipelines are made and dispatched:
//   PIPELINE number        what RADV writes next is about this pipeline
//   NAME number text       wgpu's label of a pipeline
//   DISPATCH number n      a dispatch of n workgroups
// `cargo xtask isa` compiles it and reads that. One device is assumed, and one thread that records and submits; pipelines
// may be made by several, and are made one after another, so that what RADV writes about them does not mix.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

static PFN_vkGetInstanceProcAddr next_instance_proc;
static PFN_vkGetDeviceProcAddr next_device_proc;
static VkInstance instance;
static VkDevice device;

// The next layer's function, with its type.
#define NEXT(name) ((PFN_vk##name)next_device_proc(device, "vk" #name))

// ── timeline semaphores ──

static struct {
    VkSemaphore semaphore;
    uint64_t value;
} timelines[256];
static unsigned n_timelines;

static uint64_t *timeline(VkSemaphore semaphore) {
    for (unsigned i = 0; i < n_timelines && i < 256; i++)
        if (timelines[i].semaphore == semaphore) return &timelines[i].value;
    return NULL;
}

static VKAPI_ATTR VkResult VKAPI_CALL CreateSemaphore(VkDevice d, const VkSemaphoreCreateInfo *info,
                                                      const VkAllocationCallbacks *allocator, VkSemaphore *out) {
    VkSemaphoreCreateInfo binary = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO};
    VkResult result = NEXT(CreateSemaphore)(d, &binary, allocator, out);
    for (const VkBaseInStructure *next = info->pNext; next; next = next->pNext) {
        const VkSemaphoreTypeCreateInfo *type = (const void *)next;
        if (next->sType != VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO) continue;
        if (type->semaphoreType != VK_SEMAPHORE_TYPE_TIMELINE) continue;
        unsigned at = n_timelines++ % 256;
        timelines[at].semaphore = *out;
        timelines[at].value = type->initialValue;
    }
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL GetSemaphoreCounterValue(VkDevice d, VkSemaphore semaphore, uint64_t *out) {
    uint64_t *value = timeline(semaphore);
    *out = value ? *value : 0;
    return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL QueueSubmit(VkQueue queue, uint32_t n, const VkSubmitInfo *submits, VkFence fence) {
    for (uint32_t i = 0; i < n; i++) {
        for (const VkBaseInStructure *next = submits[i].pNext; next; next = next->pNext) {
            const VkTimelineSemaphoreSubmitInfo *info = (const void *)next;
            if (next->sType != VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO) continue;
            for (uint32_t j = 0; j < info->signalSemaphoreValueCount; j++) {
                uint64_t *value = timeline(submits[i].pSignalSemaphores[j]);
                if (value) *value = info->pSignalSemaphoreValues[j];
            }
        }
    }
    return VK_SUCCESS;
}

// ── memory ──

#define HEAP_BYTES (16ull << 30)
#define ALL_MEMORY_TYPES 7

static VKAPI_ATTR void VKAPI_CALL GetPhysicalDeviceMemoryProperties(VkPhysicalDevice physical,
                                                                    VkPhysicalDeviceMemoryProperties *out) {
    const VkMemoryPropertyFlags host = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    memset(out, 0, sizeof *out);
    out->memoryHeapCount = 2;
    out->memoryHeaps[0] = (VkMemoryHeap){HEAP_BYTES, VK_MEMORY_HEAP_DEVICE_LOCAL_BIT};
    out->memoryHeaps[1] = (VkMemoryHeap){HEAP_BYTES, 0};
    out->memoryTypeCount = 3;
    out->memoryTypes[0] = (VkMemoryType){VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0};
    out->memoryTypes[1] = (VkMemoryType){host, 1};
    out->memoryTypes[2] = (VkMemoryType){host | VK_MEMORY_PROPERTY_HOST_CACHED_BIT, 1};
}

static VKAPI_ATTR void VKAPI_CALL GetPhysicalDeviceMemoryProperties2(VkPhysicalDevice physical,
                                                                     VkPhysicalDeviceMemoryProperties2 *out) {
    GetPhysicalDeviceMemoryProperties(physical, &out->memoryProperties);
}

static VKAPI_ATTR VkResult VKAPI_CALL AllocateMemory(VkDevice d, const VkMemoryAllocateInfo *info,
                                                     const VkAllocationCallbacks *allocator, VkDeviceMemory *out) {
    // Memory types are invented, so the null device is asked for its only one, and for nothing special.
    VkMemoryAllocateInfo plain = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
        .allocationSize = info->allocationSize,
    };
    return NEXT(AllocateMemory)(d, &plain, allocator, out);
}

static VKAPI_ATTR void VKAPI_CALL GetBufferMemoryRequirements(VkDevice d, VkBuffer buffer, VkMemoryRequirements *out) {
    NEXT(GetBufferMemoryRequirements)(d, buffer, out);
    out->memoryTypeBits = ALL_MEMORY_TYPES;
}

static VKAPI_ATTR void VKAPI_CALL GetBufferMemoryRequirements2(VkDevice d, const VkBufferMemoryRequirementsInfo2 *info,
                                                               VkMemoryRequirements2 *out) {
    NEXT(GetBufferMemoryRequirements2)(d, info, out);
    out->memoryRequirements.memoryTypeBits = ALL_MEMORY_TYPES;
}

// ── pipelines and dispatches ──

#define MAX_PIPELINES 4096
static VkPipeline pipelines[MAX_PIPELINES];
static unsigned n_pipelines;
static unsigned bound;
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

// The number of a pipeline: of two that had one handle, the later one.
static unsigned number_of(VkPipeline pipeline) {
    unsigned at = n_pipelines;
    while (at > 0 && pipelines[at - 1] != pipeline) at--;
    return at > 0 ? at - 1 : MAX_PIPELINES;
}

static VKAPI_ATTR VkResult VKAPI_CALL CreateComputePipelines(VkDevice d, VkPipelineCache cache, uint32_t n,
                                                             const VkComputePipelineCreateInfo *infos,
                                                             const VkAllocationCallbacks *allocator, VkPipeline *out) {
    VkResult result = VK_SUCCESS;
    const char *wave = getenv("NULL_DEVICE_WAVE");
    pthread_mutex_lock(&one_at_a_time);
    for (uint32_t i = 0; i < n && result == VK_SUCCESS; i++) {
        fprintf(stderr, "PIPELINE %u\n", n_pipelines);
        VkComputePipelineCreateInfo info = infos[i];
        VkPipelineShaderStageRequiredSubgroupSizeCreateInfo size = {
            .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
            .pNext = (void *)info.stage.pNext,
            .requiredSubgroupSize = wave ? (uint32_t)atoi(wave) : 0,
        };
        if (wave) info.stage.pNext = &size;
        result = NEXT(CreateComputePipelines)(d, cache, 1, &info, allocator, out + i);
        if (n_pipelines < MAX_PIPELINES) pipelines[n_pipelines++] = out[i];
    }
    pthread_mutex_unlock(&one_at_a_time);
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL SetDebugUtilsObjectNameEXT(VkDevice d, const VkDebugUtilsObjectNameInfoEXT *info) {
    if (info->objectType != VK_OBJECT_TYPE_PIPELINE) return VK_SUCCESS;
    pthread_mutex_lock(&one_at_a_time);
    fprintf(stderr, "NAME %u %s\n", number_of((VkPipeline)info->objectHandle), info->pObjectName);
    pthread_mutex_unlock(&one_at_a_time);
    return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL CmdBindPipeline(VkCommandBuffer commands, VkPipelineBindPoint point,
                                                  VkPipeline pipeline) {
    bound = number_of(pipeline);
}

static VKAPI_ATTR void VKAPI_CALL CmdDispatch(VkCommandBuffer commands, uint32_t x, uint32_t y, uint32_t z) {
    fprintf(stderr, "DISPATCH %u %llu\n", bound, (unsigned long long)x * y * z);
}

// All other commands, resets and waits.
static VKAPI_ATTR VkResult VKAPI_CALL Nothing(void) { return VK_SUCCESS; }

// ── the layer itself ──

// Looked up while the instance is made: later the loader answers with this layer's own function.
static PFN_vkEnumerateDeviceExtensionProperties next_extensions;

static VKAPI_ATTR VkResult VKAPI_CALL EnumerateDeviceExtensionProperties(VkPhysicalDevice physical, const char *layer,
                                                                         uint32_t *n, VkExtensionProperties *out) {
    uint32_t n_all = 0, n_shown = 0;
    next_extensions(physical, layer, &n_all, NULL);
    VkExtensionProperties *all = malloc(n_all * sizeof *all);
    next_extensions(physical, layer, &n_all, all);
    for (uint32_t i = 0; i < n_all; i++)
        if (strcmp(all[i].extensionName, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME)) all[n_shown++] = all[i];
    VkResult result = VK_SUCCESS;
    if (out) {
        if (*n < n_shown) {
            n_shown = *n;
            result = VK_INCOMPLETE;
        }
        memcpy(out, all, n_shown * sizeof *all);
    }
    *n = n_shown;
    free(all);
    return result;
}

// The loader's link to the next layer, taken out of the list that a create call is given.
#define LINK(Kind, type, info)                                                                                  \
    Kind *link = (Kind *)(info)->pNext;                                                                         \
    while (link && !(link->sType == type && link->function == VK_LAYER_LINK_INFO)) link = (Kind *)link->pNext; \
    if (!link) return VK_ERROR_INITIALIZATION_FAILED;

static VKAPI_ATTR VkResult VKAPI_CALL CreateInstance(const VkInstanceCreateInfo *info,
                                                     const VkAllocationCallbacks *allocator, VkInstance *out) {
    LINK(VkLayerInstanceCreateInfo, VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO, info)
    next_instance_proc = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    VkResult result = ((PFN_vkCreateInstance)next_instance_proc(NULL, "vkCreateInstance"))(info, allocator, out);
    instance = *out;
    next_extensions = (PFN_vkEnumerateDeviceExtensionProperties)next_instance_proc(
        instance, "vkEnumerateDeviceExtensionProperties");
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL CreateDevice(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                                                   const VkAllocationCallbacks *allocator, VkDevice *out) {
    LINK(VkLayerDeviceCreateInfo, VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO, info)
    PFN_vkGetInstanceProcAddr get = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    next_device_proc = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    VkResult result = ((PFN_vkCreateDevice)get(instance, "vkCreateDevice"))(physical, info, allocator, out);
    if (result == VK_SUCCESS) device = *out;
    return result;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL GetDeviceProcAddr(VkDevice d, const char *name);

#define SHOW(function) \
    if (!strcmp(name, "vk" #function)) return (PFN_vkVoidFunction)function;
#define SHOW_AS(vulkan, function) \
    if (!strcmp(name, vulkan)) return (PFN_vkVoidFunction)function;

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL GetInstanceProcAddr(VkInstance i, const char *name) {
    SHOW_AS("vkGetInstanceProcAddr", GetInstanceProcAddr)
    SHOW(GetDeviceProcAddr)
    SHOW(CreateInstance)
    SHOW(CreateDevice)
    SHOW(EnumerateDeviceExtensionProperties)
    SHOW(GetPhysicalDeviceMemoryProperties)
    SHOW(GetPhysicalDeviceMemoryProperties2)
    SHOW_AS("vkGetPhysicalDeviceMemoryProperties2KHR", GetPhysicalDeviceMemoryProperties2)
    SHOW(SetDebugUtilsObjectNameEXT)
    return next_instance_proc ? next_instance_proc(i, name) : NULL;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL GetDeviceProcAddr(VkDevice d, const char *name) {
    SHOW(GetDeviceProcAddr)
    SHOW(CreateSemaphore)
    SHOW(GetSemaphoreCounterValue)
    SHOW_AS("vkGetSemaphoreCounterValueKHR", GetSemaphoreCounterValue)
    SHOW(QueueSubmit)
    SHOW(AllocateMemory)
    SHOW(GetBufferMemoryRequirements)
    SHOW(GetBufferMemoryRequirements2)
    SHOW(CreateComputePipelines)
    SHOW(SetDebugUtilsObjectNameEXT)
    SHOW(CmdBindPipeline)
    SHOW(CmdDispatch)
    static const char *nothing[] = {
        "vkBeginCommandBuffer", "vkEndCommandBuffer", "vkResetCommandBuffer", "vkResetCommandPool", "vkResetFences",
        "vkWaitForFences",      "vkGetFenceStatus",   "vkQueueWaitIdle",      "vkDeviceWaitIdle",   "vkWaitSemaphores",
        "vkWaitSemaphoresKHR",
    };
    int is_nothing = !strncmp(name, "vkCmd", 5);
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++) is_nothing |= !strcmp(name, nothing[i]);
    // A function that the device lacks stays absent.
    PFN_vkVoidFunction next = next_device_proc(d, name);
    return next && is_nothing ? (PFN_vkVoidFunction)Nothing : next;
}

VKAPI_ATTR VkResult VKAPI_CALL vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface *version) {
    version->loaderLayerInterfaceVersion = 2;
    version->pfnGetInstanceProcAddr = GetInstanceProcAddr;
    version->pfnGetDeviceProcAddr = GetDeviceProcAddr;
    version->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
