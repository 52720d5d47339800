/** The fleet at a moment of the past, in the shape of the live one. */
import { request, type Answer } from './request'
import type { components } from './schema'
import type { Fleet } from './types'

type Schema = Required<components['schemas']['PastFleet']>
export type PastFleet = Fleet & Pick<Schema, 'as_of' | 'coverage' | 'resolution'>

/** What the rows of hosts and GPUs show: a large fleet is read with nothing else. */
const SHOWN = 'utilization_percent,memory_used_bytes,memory_total_bytes,temperature_celsius,power_watts,host_cpu_percent,host_memory_used_bytes,host_memory_total_bytes'
const TIMEOUT_MS = 60_000

export function readPastFleet(at: number, isLarge: boolean, signal?: AbortSignal): Promise<Answer<PastFleet>> {
  const query = { at: String(at), metrics: isLarge ? SHOWN : undefined }
  return request('get', '/api/v1/fleet', { query, timeoutMs: TIMEOUT_MS, signal }) as Promise<Answer<PastFleet>>
}
