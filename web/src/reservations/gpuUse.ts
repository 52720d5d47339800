/** Who is on a GPU now, for the timeline and the forms: what is in use must not look free because nobody reserved it. */
import type { Availability, Gpu, Host } from '../api/types'
import { clockTime, count, plain } from '../ui/format'

export interface GpuUse {
  state: Availability
  /** `ann`, `user unknown`, `not reporting`; of a host `7/8` in use. */
  who: string
  /** All of it in one sentence. */
  label: string
  /** How much of what the row stands for is not free, 0 to 1. */
  part: number
}

/** Null where it is free, or where its reservation says all of it. `now` is the hub's clock. */
export function gpuUse(gpu: Gpu, host: Host, now: number): GpuUse | null {
  if (host.status !== 'up' || gpu.availability === 'unknown') return { state: 'unknown', who: host.status === 'up' ? 'unknown' : 'not reporting', label: plain(gpu.availability_reason ?? 'state unknown'), part: 1 }
  if (gpu.availability !== 'busy' && gpu.availability !== 'idle') return null
  const who = gpu.users.length === 0 ? 'user unknown' : plain(gpu.users.join(', '))
  const since = gpu.since === null || Number.isNaN(gpu.since) ? null : gpu.since
  const label = `In use by ${gpu.users.length === 0 ? 'an unknown user' : who}${gpu.availability === 'idle' ? ', idle' : ''}${since === null ? '' : `, ${gpu.availability} since ${clockTime(since, now)}`}. Its end is not known`
  return { state: gpu.availability, who, label, part: 1 }
}

/** Of all GPUs of a host; null where none of them is in use or unknown. */
export function hostUse(uses: readonly (GpuUse | null)[]): GpuUse | null {
  const taken = uses.filter((use) => use !== null)
  if (taken.length === 0) return null
  const isAll = (wanted: Availability): boolean => taken.every(({ state }) => state === wanted)
  const state = isAll('unknown') ? 'unknown' : isAll('idle') ? 'idle' : 'busy'
  const unknown = taken.filter((use) => use.state === 'unknown').length
  const inUse = taken.length - unknown
  const told = [...(inUse === 0 ? [] : [`${inUse} in use`]), ...(unknown === 0 ? [] : [`${unknown} unknown`])].join(', ')
  const who = inUse === 0 ? 'unknown' : `${inUse}/${uses.length}`
  return { state, who, label: `${count(uses.length, 'GPU')}, ${told} now`, part: taken.length / uses.length }
}
