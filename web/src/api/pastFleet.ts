/** The fleet at a moment of the past, in the shape of the live one. */
import { request, type Answer } from './request'
import type { components } from './schema'

export type PastFleet = components['schemas']['PastFleet']

/** What the rows of hosts and GPUs show: a large fleet is read with nothing else. */
const SHOWN = 'utilization_percent,memory_used_bytes,memory_total_bytes,temperature_celsius,power_watts,host_cpu_percent,host_memory_used_bytes,host_memory_total_bytes'
const TIMEOUT_MS = 60_000

export async function readPastFleet(at: number, isLarge: boolean, signal?: AbortSignal): Promise<Answer<PastFleet>> {
  const query = { at: String(at), metrics: isLarge ? SHOWN : undefined }
  const answer = await request('get', '/api/v1/fleet', { query, timeoutMs: TIMEOUT_MS, signal })
  if ('refused' in answer) return answer
  // Anything but the past must not be shown as the past.
  return 'as_of' in answer.done ? { done: answer.done } : { refused: { status: null, message: '' } }
}
