/** Being told when GPUs are free. */
import { ask, type Answer } from './ask'
import type { components } from './schema'

type Schemas = components['schemas']

export type Watch = Schemas['WatchView']
export type NewWatch = Partial<Schemas['NewWatch']>

const AT = 'api/v1/watches'

export const listWatches = (): Promise<Answer<Schemas['WatchList']>> => ask(`${AT}?mine=true`)
export const addWatch = (watch: NewWatch): Promise<Answer<Watch>> => ask(AT, 'POST', watch)
export const removeWatch = (id: number): Promise<Answer<object>> => ask(`${AT}/${id}`, 'DELETE')
