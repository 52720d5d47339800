/** The idle policy: what happened to idle GPUs, what comes next, and what owners keep. */
import { request, type Answer } from './request'
import type { components } from './schema'

type Schemas = components['schemas']

export type IdlePolicyState = Schemas['IdlePolicyState']

export const readIdlePolicy = (signal?: AbortSignal): Promise<Answer<IdlePolicyState>> => request('get', '/api/v1/idle-policy', { signal })
export const keepGpu = (keep: Schemas['NewKeep']): Promise<Answer<Schemas['Keep']>> => request('post', '/api/v1/keeps', { body: keep })
export const endKeep = (id: number): Promise<Answer<Schemas['Keep']>> => request('delete', '/api/v1/keeps/{number}', { path: { number: id } })
