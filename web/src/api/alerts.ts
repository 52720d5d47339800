/** What is wrong: looking after it, and having nobody told of it for a while. */
import { ask, type Answer } from './ask'
import type { components } from './schema'

type Schemas = components['schemas']

export type Alert = Schemas['Alert']
export type Silence = Schemas['Silence']
export type NewSilence = Partial<Schemas['NewSilence']> & { reason: string; for: string }

export const acknowledge = (id: string): Promise<Answer<Alert>> => ask(`api/v1/alerts/${encodeURIComponent(id)}/acknowledge`, 'POST')
export const addSilence = (silence: NewSilence): Promise<Answer<Silence>> => ask('api/v1/silences', 'POST', silence)
