/** How to run a program on one GPU and no other. */
import type { Gpu, Host } from '../api/types'

const NVIDIA_UUID = /^(GPU|MIG)-[\w-]+$/
const ROCM_UUID = /^GPU-[0-9a-f]{16}$/

/** The environment variable with its value, by vendor; null where no variable can name the GPU, or where it is missing. */
export function deviceVariable(gpu: Gpu, host: Host): string | null {
  if (isMissing(gpu)) return null
  if (gpu.vendor === 'nvidia') return NVIDIA_UUID.test(gpu.uuid) ? `CUDA_VISIBLE_DEVICES=${gpu.uuid}` : null
  // Older cards have no number of their own: ROCm then counts them.
  if (gpu.vendor === 'amd') return ROCM_UUID.test(gpu.uuid) ? `ROCR_VISIBLE_DEVICES=${gpu.uuid}` : `HIP_VISIBLE_DEVICES=${vendorIndex(gpu, host)}`
  return gpu.vendor === 'intel' ? `ZE_AFFINITY_MASK=${vendorIndex(gpu, host)}` : null
}

export function variableName(variable: string): string {
  return variable.replace(/=.*/, '')
}

/** The position among the host's GPUs of the same vendor: runtimes count only their own. */
function vendorIndex(gpu: Gpu, host: Host): number {
  const own = host.gpus.filter(({ vendor }) => vendor === gpu.vendor).sort((a, b) => a.index - b.index)
  return own.findIndex(({ uuid }) => uuid === gpu.uuid)
}

/** Opens a shell on the host with only this GPU visible. Null unless the GPU is free and the host is up. */
export function useCommand(gpu: Gpu, host: Host): string | null {
  const variable = deviceVariable(gpu, host)
  if (variable === null || host.status !== 'up' || gpu.availability !== 'free' || !/^[\w.-]+$/.test(host.name)) return null
  return `ssh -t ${host.name} '${variable} exec $SHELL -l'`
}

/** Whether the GPU belongs here but cannot be reached: nothing can run on it. */
export function isMissing(gpu: Gpu): boolean {
  const hasProblem = gpu.health === 'critical' || gpu.health === 'unknown'
  const readings = [gpu.utilization_percent, gpu.memory_used_bytes, gpu.temperature_celsius, gpu.power_watts]
  return gpu.availability === 'unknown' && hasProblem && readings.every((reading) => reading === null)
}
