// A Vulkan layer that says a device has two features and leaves them out again when the device is made.
//
// Recent Dawn (Node's `webgpu`) refuses Mesa 22.3's lavapipe, which lacks dynamic indexing of sampled and storage images.
// Compute shaders of tensor libraries index none. What runs on this is lavapipe with a doctored report; say so beside figures.
//
//     gcc -shared -fPIC -O1 -o libfeatures.so features.c        # needs Debian's libvulkan-dev
//     VK_LAYER_PATH=$PWD VK_INSTANCE_LAYERS=VK_LAYER_LAZULI_bench_features node train_peers.mjs

#include <stdlib.h>
#include <string.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

// One instance at a time is enough here.
static PFN_vkGetInstanceProcAddr next_instance;
static PFN_vkGetDeviceProcAddr next_device;
static VkInstance instance;
// Asked for when the instance is made: later the loader answers with its first layer's, which may be this one.
static PFN_vkGetPhysicalDeviceFeatures next_features;
static PFN_vkGetPhysicalDeviceFeatures2 next_features2;

static void spoof(VkPhysicalDeviceFeatures *f, VkBool32 on) {
    f->shaderSampledImageArrayDynamicIndexing = on;
    f->shaderStorageImageArrayDynamicIndexing = on;
}

static VKAPI_ATTR void VKAPI_CALL get_features(VkPhysicalDevice gpu, VkPhysicalDeviceFeatures *out) {
    next_features(gpu, out);
    spoof(out, VK_TRUE);
}

static VKAPI_ATTR void VKAPI_CALL get_features2(VkPhysicalDevice gpu, VkPhysicalDeviceFeatures2 *out) {
    next_features2(gpu, out);
    spoof(&out->features, VK_TRUE);
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice gpu, const VkDeviceCreateInfo *info,
                                                    const VkAllocationCallbacks *alloc, VkDevice *out) {
    VkLayerDeviceCreateInfo *chain = (VkLayerDeviceCreateInfo *)info->pNext;
    while (chain && !(chain->sType == VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO && chain->function == VK_LAYER_LINK_INFO))
        chain = (VkLayerDeviceCreateInfo *)chain->pNext;
    if (!chain) return VK_ERROR_INITIALIZATION_FAILED;
    PFN_vkGetInstanceProcAddr from_instance = chain->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    next_device = chain->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    chain->u.pLayerInfo = chain->u.pLayerInfo->pNext;
    VkDeviceCreateInfo without = *info;
    VkPhysicalDeviceFeatures features;
    if (info->pEnabledFeatures) {
        features = *info->pEnabledFeatures;
        spoof(&features, VK_FALSE);
        without.pEnabledFeatures = &features;
    }
    for (VkBaseOutStructure *s = (VkBaseOutStructure *)info->pNext; s; s = s->pNext)
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2) spoof(&((VkPhysicalDeviceFeatures2 *)s)->features, VK_FALSE);
    return ((PFN_vkCreateDevice)from_instance(instance, "vkCreateDevice"))(gpu, &without, alloc, out);
}

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo *info, const VkAllocationCallbacks *alloc,
                                                      VkInstance *out) {
    VkLayerInstanceCreateInfo *chain = (VkLayerInstanceCreateInfo *)info->pNext;
    while (chain && !(chain->sType == VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO && chain->function == VK_LAYER_LINK_INFO))
        chain = (VkLayerInstanceCreateInfo *)chain->pNext;
    if (!chain) return VK_ERROR_INITIALIZATION_FAILED;
    next_instance = chain->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    chain->u.pLayerInfo = chain->u.pLayerInfo->pNext;
    VkResult result = ((PFN_vkCreateInstance)next_instance(NULL, "vkCreateInstance"))(info, alloc, out);
    if (result != VK_SUCCESS) return result;
    instance = *out;
    next_features = (PFN_vkGetPhysicalDeviceFeatures)next_instance(*out, "vkGetPhysicalDeviceFeatures");
    next_features2 = (PFN_vkGetPhysicalDeviceFeatures2)next_instance(*out, "vkGetPhysicalDeviceFeatures2");
    return result;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice device, const char *name) {
    if (!strcmp(name, "vkGetDeviceProcAddr")) return (PFN_vkVoidFunction)device_proc;
    return next_device(device, name);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_proc(VkInstance at, const char *name) {
    struct { const char *name; PFN_vkVoidFunction function; } ours[] = {
        {"vkGetInstanceProcAddr", (PFN_vkVoidFunction)instance_proc},
        {"vkCreateInstance", (PFN_vkVoidFunction)create_instance},
        {"vkCreateDevice", (PFN_vkVoidFunction)create_device},
        {"vkGetDeviceProcAddr", (PFN_vkVoidFunction)device_proc},
        {"vkGetPhysicalDeviceFeatures", (PFN_vkVoidFunction)get_features},
        {"vkGetPhysicalDeviceFeatures2", (PFN_vkVoidFunction)get_features2},
        {"vkGetPhysicalDeviceFeatures2KHR", (PFN_vkVoidFunction)get_features2},
    };
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (!strcmp(name, ours[i].name)) return ours[i].function;
    return next_instance ? next_instance(at, name) : NULL;
}

VK_LAYER_EXPORT VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance at, const char *name) {
    return instance_proc(at, name);
}

VK_LAYER_EXPORT VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetDeviceProcAddr(VkDevice device, const char *name) {
    return device_proc(device, name);
}
