/** The flakiest GPUs and hosts. */
import { request, type Answer } from './request'
import type { components } from './schema'

export type Reliability = components['schemas']['Reliability']
export type ReliabilityRow = components['schemas']['ReliabilityRow']
export type RankedBy = Reliability['by']

export function readReliability(query: { by: RankedBy; start: string; end: string; gpu?: string }, signal?: AbortSignal): Promise<Answer<Reliability>> {
  return request('get', '/api/v1/reliability', { query, signal })
}
