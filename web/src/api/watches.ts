/** Being told when GPUs are free. */
import { request, type Answer } from './request'
import type { components } from './schema'

type Schemas = components['schemas']

export type Watch = Schemas['WatchView']
export type NewWatch = Schemas['NewWatch']

export const listWatches = (): Promise<Answer<Schemas['WatchList']>> => request('get', '/api/v1/watches', { query: { mine: true } })
export const addWatch = (watch: NewWatch): Promise<Answer<Watch>> => request('post', '/api/v1/watches', { body: watch })
export const removeWatch = (id: number): Promise<Answer<object>> => request('delete', '/api/v1/watches/{number}', { path: { number: id } })
