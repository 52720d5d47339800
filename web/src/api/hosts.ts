/** Adding and removing hosts. Addresses are relative: the hub may live below any path prefix. */
import type { AddedHosts, NewHost } from './types'

/** Why not, in the hub's own words. `status` is null where the hub gave no answer that makes sense. */
export interface Refusal {
  status: number | null
  message: string
}

export type Answer<T> = { done: T } | { refused: Refusal }

const PATIENCE_MS = 15_000
const NO_ANSWER: Refusal = { status: null, message: '' }

export function addHost(host: NewHost): Promise<Answer<AddedHosts>> {
  return ask('api/v1/hosts', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(host) })
}

/** By id: two hosts may share a name. */
export function removeHost(id: string): Promise<Answer<{ name: string }>> {
  return ask(`api/v1/hosts/${encodeURIComponent(id)}`, { method: 'DELETE' })
}

async function ask<T>(url: string, request: RequestInit): Promise<Answer<T>> {
  try {
    const answer = await fetch(url, { ...request, signal: AbortSignal.timeout(PATIENCE_MS) })
    const body = (await answer.json().catch(() => null)) as (T & { error?: { message?: string } }) | null
    if (answer.ok && body !== null) return { done: body }
    // What a proxy says with success, but not in the hub's words, is its own page.
    return { refused: answer.ok ? NO_ANSWER : { status: answer.status, message: body?.error?.message ?? '' } }
  } catch {
    return { refused: NO_ANSWER }
  }
}
